"""One cache of ceilings for the whole session, so that the machine is measured once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cold_and_warm import Warm

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.mktemp("ceilings")))
        patch.setenv("NO_COLOR", "1")
        yield


@pytest.fixture(scope="session")
def warm(_one_cache: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    runner = Warm(tmp_path_factory.mktemp("streams"))
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's models in it, `net.py` and `bad.py`, away from this checkout."""
    folder = tmp_path_factory.mktemp("user")
    for name in ("net", "bad"):
        (folder / f"{name}.py").write_text((HERE / f"user_{name}.py").read_text())
    return folder
