"""Time of the main job: what is read from its output, and what is refused."""

from __future__ import annotations

import pytest

from studies import main_job
from studies.common import Unfit

TEXT = """
implementation                   results    a second    processor s    of it judging
jax-jit                              823        5.05          160.8              3.1
torch-varlen-flex                    144         3.2           33.5              0.6
onnx-export23-static                 530        9.32           30.6             27.7
numpy-eager                          920       1e+02            5.3              4.3
all                                 2417        14.8          230.2             35.7
check        921 s,    1663 s of processor time
bench        222 s,     211 s of processor time
report         4 s,       5 s of processor time
all         1147 s,    1879 s of processor time
"""


def test_every_stage_and_every_kind_is_read() -> None:
    """Each implementation belongs to one kind, and the sum to none."""
    found = main_job.read(TEXT)
    assert found["stages"]["check"] == [921, 1663]
    assert [kind[1] for kind in found["kinds"].values()] == [160.8, 33.5, 30.6, 5.3]


def test_a_job_that_failed_is_refused() -> None:
    """The times would be those of incomplete work."""
    with pytest.raises(Unfit, match="bench, exit status 1"):
        main_job.read(TEXT.replace("211 s of processor time", "211 s of processor time, exit status 1"))
    with pytest.raises(Unfit, match="did not end well"):
        main_job.read(TEXT.partition("report")[0])


def test_what_is_published_was_empty_first() -> None:
    """Compilers have more to do with empty caches, and judge the same results."""
    cold, warm = main_job.STUDY.kept()["runs"].values()
    assert {kind: each[0] for kind, each in cold["kinds"].items()} == {k: each[0] for k, each in warm["kinds"].items()}
    for kind in list(main_job.KINDS)[:3]:
        assert cold["kinds"][kind][1] > warm["kinds"][kind][1]
