"""Every bound that the OpenAPI document names, and what lies beyond it.

Only `make proof-api` collects this: the requests are made while it is collected.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import Phase, settings
from schemathesis import Case

from tests.api.bounded import bounded
from tests.api.documented import DOCUMENT
from tests.api.exploring import CHECKS, Daemon, limited
from tests.api.living import living

BOUNDARIES = schemathesis.openapi.from_dict(DOCUMENT).exclude(path_regex="^/s/")
BOUNDARIES.config.phases.fuzzing.enabled = False


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with living(tmp_path_factory.mktemp("bounds")) as url:
        yield Daemon(url)


@pytest.mark.proof_api
@BOUNDARIES.parametrize()
@settings(bounded(1), phases=[Phase.explicit])
def test_every_bound_of_the_document(daemon: Daemon, case: Case) -> None:
    limited(case)
    case.validate_response(daemon.call(case), checks=CHECKS)
