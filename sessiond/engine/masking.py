"""Which tokens may come next in a constrained reply: llguidance over a model's vocabulary."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakKeyDictionary

import llguidance
import numpy as np
import numpy.typing as npt
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from sessiond.engine.constraint import Constraint, Lark
from sessiond.engine.context import Model, Sampler
from sessiond.engine.lark import lark
from sessiond.errors import InvalidRequest

Allowed = npt.NDArray[np.bool_]
"""Shape (n_vocab,)."""
_COMPILED = 64
_LONGEST_REASON = 200
_STATE = re.compile(r"<state>|<non-verbose/>|<backtrace>")
_LISTING = re.compile(r"\n\s*\d+ \| ")
_LIMITS = llguidance.LLParserLimits(
    max_grammar_size=100_000, max_lexer_states=50_000, verbose_errors=False
)


class Matcher:
    """Follows one reply. Engine thread only."""

    def __init__(self, matcher: llguidance.LLMatcher, n_vocab: int) -> None:
        self._matcher = matcher
        self._n_vocab = n_vocab
        self._bits = allocate_token_bitmask(1, n_vocab)

    def allowed(self) -> Allowed:
        """An end of generation is among them where the reply may end, and alone where it must.

        Raises InvalidRequest where the grammar has become too much to follow, or leads nowhere.
        """
        fill_next_token_bitmask(self._matcher, self._bits)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), bitorder="little", count=self._n_vocab)
        allowed: Allowed = bits.view(np.bool_)
        if not allowed.any():
            raise _refused("nothing can follow it")
        return allowed

    def accept(self, token: int) -> None:
        """An allowed token was drawn. Raises InvalidRequest as `allowed` does."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise _refused(self._matcher.get_error())


class ConstrainedSampler:
    """Another sampler that sees the logits of allowed tokens only. Engine thread only."""

    def __init__(
        self,
        sampler: Sampler,
        matcher: Matcher,
        logits: Callable[[int], npt.NDArray[np.float32]],
    ) -> None:
        self._sampler = sampler
        self._matcher = matcher
        self._logits = logits

    def sample(self, row: int) -> int:
        """The logits are as they were afterwards. Where a bias or a script wants what is not
        allowed, it is the likeliest of what is.
        """
        allowed, logits = self._matcher.allowed(), self._logits(row)
        kept = logits.copy()
        logits[~allowed] = -np.inf
        try:
            token = self._sampler.sample(row)
            if not allowed[token]:
                token = int(logits.argmax())
        finally:
            logits[:] = kept
        self._matcher.accept(token)
        return token

    def close(self) -> None:
        self._sampler.close()


class Grammars:
    """The compiled grammars of one model. Any thread."""

    def __init__(self, model: Model) -> None:
        """Reads the whole vocabulary, which takes some tenths of a second. Raises InvalidRequest
        for a model that no reply can be ended with.
        """
        self._n_vocab = model.info.n_vocab
        vocabulary = _Vocabulary(model)
        self._control = vocabulary.control
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(vocabulary),
            n_vocab=self._n_vocab,
            eos_token=vocabulary.ends,
        )
        self._compiled: OrderedDict[Constraint, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, constraint: Constraint) -> Matcher:
        """At the beginning of a reply. Raises InvalidRequest that names the field at fault.

        Compiling a grammar for the first time takes milliseconds, a very large one a second:
        do that before the engine thread asks.
        """
        with self._lock:
            compiled = self._compiled.get(constraint)
            if compiled is not None:
                self._compiled.move_to_end(constraint)
        if compiled is None:
            compiled = self._compile(constraint)
            with self._lock:
                self._compiled[constraint] = compiled
                while len(self._compiled) > _COMPILED:
                    self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy(), self._n_vocab)

    def _compile(self, constraint: Constraint) -> llguidance.LLMatcher:
        try:
            return self._compile_one(constraint)
        except InvalidRequest as error:
            if isinstance(constraint.form, Lark):
                raise InvalidRequest(error.message, param=constraint.form.param) from error
            self._compile_each(constraint)
            raise

    def _compile_each(self, constraint: Constraint) -> None:
        """Raises InvalidRequest for the schema that is at fault by itself, if one is."""
        for schema in constraint.schemas:
            try:
                self._compile_one(Constraint(schema))
            except InvalidRequest as error:
                raise InvalidRequest(error.message, hint=error.hint, param=schema.param) from error

    def _compile_one(self, constraint: Constraint) -> llguidance.LLMatcher:
        text = lark(constraint, self._control)
        compiled = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=_LIMITS)
        if compiled.is_error():
            raise _refused(compiled.get_error())
        Matcher(compiled.deep_copy(), self._n_vocab).allowed()
        return compiled


class _Vocabulary:
    """What llguidance wants to know of one."""

    bos_token_id = None

    def __init__(self, model: Model) -> None:
        tokens = range(model.info.n_vocab)
        shown = [model.piece(token) for token in tokens]
        self.tokens = [shown[token] or model.piece(token, special=True) for token in tokens]
        self.ends = [token for token in tokens if model.ends_generation(token)]
        if not self.ends:
            raise _refused("the model has no token that ends a reply")
        hidden = [token for token in tokens if not shown[token] and self.tokens[token]]
        self.special_token_ids = sorted({*hidden, *self.ends})
        self.eos_token_id = self.ends[0]
        self.control = {
            self.tokens[token].decode(errors="replace"): token for token in reversed(hidden)
        }

    def __call__(self, _text: bytes) -> list[int]:
        """Nothing is forced, so nothing is tokenized."""
        return []


_known: WeakKeyDictionary[Model, Grammars] = WeakKeyDictionary()
_knowing = threading.Lock()


def grammars(model: Model) -> Grammars:
    """Those of a model, which are made when they are asked for first. Any thread."""
    with _knowing:
        found = _known.get(model)
        if found is None:
            found = _known[model] = Grammars(model)
        return found


def prepare(model: Model, constraint: Constraint) -> None:
    """Compile it before a run needs it. Blocks: not on the event loop, nor the engine thread.

    Raises InvalidRequest that names the field at fault.
    """
    grammars(model).matcher(constraint)


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"No reply can be made to follow this grammar: {_plain(reason)}.",
        hint="Change it, or make it simpler.",
    )


def _plain(reason: str) -> str:
    """llguidance's reason on one line, without the listing of our grammar and its own state."""
    if reason.startswith("panic"):
        return "it is too large"
    if reason.startswith("NoExtension"):
        return "it leads nowhere"
    said = _LISTING.split(_STATE.split(reason, maxsplit=1)[0], maxsplit=1)[0]
    plain = " ".join(said.split()).rpartition("failed to compile JSON schema: ")[2].rstrip(".")
    return plain if len(plain) <= _LONGEST_REASON else plain[:_LONGEST_REASON] + "…"
