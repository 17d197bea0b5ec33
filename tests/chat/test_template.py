"""A chat template does what Hugging Face's does, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sessiond.chat import weighing
from sessiond.chat.template import ChatTemplate
from sessiond.errors import TemplateError

NOW = datetime(2025, 11, 29, 10, 2, tzinfo=UTC)


def render(source: str, *, messages: object = (), tools: object = None, **options: object) -> str:
    return ChatTemplate(source).render(
        messages,  # type: ignore[arg-type]
        tools=tools,  # type: ignore[arg-type]
        bos="<s>",
        eos="</s>",
        now=NOW,
        options=options,
    )


def test_templates_see_the_special_tokens_and_the_generation_prompt() -> None:
    assert render("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}") == "<s></s>True"


def test_an_option_reaches_the_template_but_never_replaces_the_messages() -> None:
    source = "{{ enable_thinking }} {{ messages[0].content }}"
    messages = [{"role": "user", "content": "hi"}]
    assert render(source, messages=messages, enable_thinking=False) == "False hi"
    with_option = ChatTemplate(source).render(
        messages, tools=None, bos="", eos="", now=NOW, options={"messages": [{"content": "other"}]}
    )
    assert with_option.endswith(" hi")


def test_the_clock_stands_still() -> None:
    assert render("{{ strftime_now('%Y-%m-%d %H:%M') }}") == "2025-11-29 10:02"


def test_blocks_leave_no_white_space() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"


def test_loop_controls_work() -> None:
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{{ i }}{% if i == 3 %}{% break %}{% endif %}{% endfor %}"
    )
    assert render(source) == "023"


def test_the_generation_tag_passes_its_body_through() -> None:
    source = "{% for m in messages %}[{% generation %}{{ m }}{% endgeneration %}]{% endfor %}"
    assert render(source, messages=["a", "b"]) == "[a][b]"


def test_a_template_can_append_to_its_own_lists() -> None:
    assert render("{% set l = [] %}{% set _ = l.append(1) %}{{ l }}") == "[1]"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", '{"b": "<ä&\'>", "a": [1]}'),
        ("sort_keys=true", '{"a": [1], "b": "<ä&\'>"}'),
        ("ensure_ascii=true", '{"b": "<\\u00e4&\'>", "a": [1]}'),
        ("separators=(',', ':')", '{"b":"<ä&\'>","a":[1]}'),
        ("indent=1", '{\n "b": "<ä&\'>",\n "a": [\n  1\n ]\n}'),
    ],
)
def test_tojson_writes_json_without_html(arguments: str, expected: str) -> None:
    assert render(
        f"{{{{ tools[0] | tojson({arguments}) }}}}", tools=[{"b": "<ä&'>", "a": [1]}]
    ) == (expected)


def test_what_the_template_raises_is_the_message() -> None:
    with pytest.raises(TemplateError) as refused:
        render("{{ raise_exception('Roles must alternate!') }}")
    assert refused.value.message == "Roles must alternate!"
    assert refused.value.status == 400


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% endfor %}", "{{ x | nofilter }}"])
def test_a_broken_template_names_the_way_out(source: str) -> None:
    with pytest.raises(TemplateError) as refused:
        render(source)
    assert "--model-chat-template-file" in refused.value.hint


def test_undefined_names_print_nothing_but_have_no_attributes() -> None:
    assert render("[{{ nothing }}]") == "[]"
    with pytest.raises(TemplateError):
        render("{{ nothing.at_all }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ messages[3].content }}",
        "{{ 'x'.split(1) }}",
        "{{ nothing | tojson }}",
        "{{ '%d' % 'x' }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_fault_while_rendering_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ lipsum.__globals__ }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ().__class__.__base__ }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ ('{0.__cl' ~ 'ass__}').format_map({'0': 1}) }}{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ raise_exception.__code__ }}",
        "{{ strftime_now.__self__.__class__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ self._TemplateReference__context.__class__ }}",
        "{{ messages.clear() }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages.append.__self__ }}",
        "{{ range(10**9) }}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{{ lipsum(1000000) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_an_attack_is_refused(source: str) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(TemplateError):
        render(source, messages=messages)
    assert messages == [{"role": "user", "content": "hi"}]


GROWING = "{% set x = namespace(s='ab') %}{% for i in range(99) %}{% set x.s ="


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if j > i %}.{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(99) }}",
        "{% for a in [[]] recursive %}{{ loop([[], []]) }}{% endfor %}",
        f"{GROWING} x.s ~ x.s %}}{{% endfor %}}",
        f"{GROWING} x.s + x.s %}}{{% endfor %}}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ [0] * 10 ** 12 }}",
        "{{ 10 ** 10000000 }}",
        "{% set x = namespace(n=9) %}{% for i in range(99) %}{% set x.n = x.n * x.n %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x' | indent(1000000000, first=true) }}",
    ],
)
def test_what_would_run_or_grow_without_end_is_refused(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal is the assertion: without a budget none of these would come back."""
    monkeypatch.setattr(weighing, "CPU_S", 0.2)
    with pytest.raises(TemplateError) as refused:
        render(source)
    assert refused.value.status == 400 and refused.value.hint


NESTING = "{% set x = namespace(a=['x'], b=0) %}{% for i in range(29) %}{% set x.a ="


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{{ ('\t' * 6000000).expandtabs(100) }}", "MiB of text"),
        ("{{ [[1]] | tojson(indent=300000000) }}", "indents"),
        ("{{ [[1]] | tojson(separators=('x' * 100, ':')) }}", "indents"),
        ("{{ (range(100000) | list * 300) | sort }}", "MiB of text"),
        ("{{ (range(100000) | list * 3) | sort }}", "sort"),
        ("{{ ('a-' * 3000000) | title }}", "title"),
        ("{% for i in range(100) %}{{ 'x' * 8000000 }}{% endfor %}", "MiB of text"),
        (f"{{% for i in range(99999) %}}{'x' * 999}{{% endfor %}}", "MiB of text"),
        ("{% set x %}{% for i in range(99) %}{{ 'x' * 8000000 }}{% endfor %}{% endset %}", "MiB"),
        (
            "{% set l = [] %}{% for i in range(60) %}{% set _ = l.append('x' * 8000000) %}"
            "{% endfor %}",
            "nests more",
        ),
        ("{{ ([[1]] * 60000) | sum(start=[]) }}", "GiB in all"),
        ("{{ ('a' * 30000) | replace('a', 'b' * 30000) }}", "MiB of text"),
        ("{{ ('a' * 30000).replace('a', 'b' * 30000) }}", "MiB of text"),
        ("{{ (['b' * 1000000] * 30) | join }}", "MiB of text"),
        ("{{ ('b' * 100000).join('a' * 9000) }}", "MiB of text"),
        ("{{ ('a' * 10000).translate({97: 'b' * 100000}) }}", "MiB of text"),
        ("{{ '{0}{0}{0}'.format('x' * 8000000) }}", "MiB of text"),
        ("{{ ('%(a)s' * 3) | format(a='x' * 8000000) }}", "MiB of text"),
        ("{{ '%s%s' % ('x' * 8000000, 'x' * 8000000) }}", "MiB of text"),
        (NESTING + " [x.a, x.a] %}{% endfor %}{{ x.a == x.a | list }}", "nests more"),
        (NESTING + " (x.a, x.a) %}{% endfor %}{{ {x.a: 1} }}", "nests more"),
        (NESTING + " {'a': x.a, 'b': x.a} %}{% endfor %}{{ x.a | string }}", "nests more"),
        (NESTING + " dict(a=x.a, b=x.a) %}{% endfor %}{{ x.a | tojson }}", "nests more"),
        (NESTING + " [x.a] * 2 %}{% endfor %}", "nests more"),
        (NESTING + " [x.a] | batch(2, x.a) | list %}{% endfor %}", "nests more"),
        (
            "{% set x = namespace(a=['x']) %}{% for i in range(29) %}{% set l = [] %}"
            "{% set _ = l.append(x.a) %}{% set _ = l.append(x.a) %}{% set x.a = l %}{% endfor %}",
            "nests more",
        ),
        ("{% macro m() %}{{ m(varargs, varargs) }}{% endmacro %}{{ m(1, 2) }}", "nests more"),
        ("{% set x = namespace() %}{% set x.a = x %}", "namespace"),
        ("{{ namespace(a=namespace()) }}", "namespace"),
        (
            "{% set x = namespace(a=()) %}{% for i in range(999) %}{% set x.a = (x.a,) %}"
            "{% endfor %}",
            "nests more than 200",
        ),
    ],
)
def test_what_c_would_do_for_long_is_refused_before(source: str, why: str) -> None:
    """C code cannot be interrupted: no budget of time helps."""
    with pytest.raises(TemplateError, match=why):
        render(source)


def test_nothing_is_made_when_a_template_is_compiled() -> None:
    source = "{{ ('x' * 9000000) | length }}"
    template = ChatTemplate(source)
    with pytest.raises(TemplateError, match="MiB of text"):
        template.render((), tools=None, bos="", eos="", now=NOW, options={})


def test_long_requests_may_be_rendered_as_they_are() -> None:
    """Whether they fit is not for the template to say."""
    long = "x" * (weighing.LONGEST + 9)
    source = "{% for m in messages %}{{ '<' + m.content ~ '>' }}{{ m.content | trim }}{% endfor %}"
    messages = [{"role": "user", "content": long}] * 2
    assert render(source, messages=messages) == f"<{long}>{long}" * 2


def test_lists_that_grow_in_a_loop_are_weighed_once() -> None:
    source = (
        "{% set x = namespace(l=[]) %}{% for m in messages %}{% set x.l = x.l + [m] %}{% endfor %}"
        "{{ x.l | length }}{{ x.l[-1].content }}"
    )
    messages = [{"role": "user", "content": f"{n}"} for n in range(3000)]
    assert render(source, messages=messages) == "30002999"


@pytest.mark.parametrize("source", ["{{ 'x' | truncate(5, True, 'y' * 99) }}"])
def test_what_a_filter_does_not_expect_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_the_budget_is_that_of_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A rendering uses its budget up. 2. The next one. Result: it has a budget of its own."""
    monkeypatch.setattr(weighing, "CPU_S", 0.2)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError):
        render(endless)
    assert render("{% for i in range(3) %}{{ loop.index ~ '/' ~ loop.length }} {% endfor %}") == (
        "1/3 2/3 3/3 "
    )


def test_loops_over_what_has_no_length_still_know_where_they_are() -> None:
    source = (
        "{% for m in messages | selectattr('role', 'equalto', 'user') %}"
        "{{ loop.index }}/{{ loop.length }}{{ '!' if loop.last else ' ' }}{% endfor %}"
    )
    messages = [{"role": role, "content": ""} for role in ("user", "assistant", "user")]
    assert render(source, messages=messages) == "1/2 2/2!"


def test_macros_may_name_their_arguments_as_they_like() -> None:
    macro = "{% macro m(obj, context, called) %}{{ obj ~ context ~ called }}{% endmacro %}"
    assert render(macro + "{{ m(obj=1, context=2, called=3) }}") == "123"
