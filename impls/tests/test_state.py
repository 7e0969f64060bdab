"""Settings of a process around a call: changes are reported and restored; those that cannot be restored are named."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from attention_conformance.impls.process import state
from attention_conformance.impls.process.state import Setting, Watch, float_mode, settings, thread_settings
from attention_conformance.impls.tests import misbehaving


class Box:
    """A setting that may refuse to be restored or read."""

    def __init__(self) -> None:
        self.value = 1
        self.locked = self.gone = False

    def get(self) -> int:
        """The value."""
        if self.gone:
            raise OSError("gone")
        return self.value

    def put(self, value: int) -> None:
        """Set it, unless it is locked."""
        if not self.locked:
            self.value = value


def test_a_change_is_said_and_put_back() -> None:
    """After a call the setting has its old value, and the change is reported with both values."""
    box = Box()
    with Watch([Setting("box", box.get, box.put)]) as watch:
        box.value = 2
    assert (watch.changed, watch.side_effects, watch.stuck) == (("box: 1 → 2",), (), ())
    assert box.value == 1


def test_a_change_that_harms_nothing_is_a_remark() -> None:
    """A harmless setting is restored too, and is reported separately."""
    box = Box()
    with Watch([Setting("box", box.get, box.put, harmless=True)]) as watch:
        box.value = 2
    assert (watch.changed, watch.side_effects, box.value) == ((), ("box: 1 → 2",), 1)


def test_what_is_as_before_is_not_mentioned() -> None:
    """A call that restores what it changed changed nothing."""
    box = Box()
    with Watch([Setting("box", box.get, box.put)]) as watch:
        box.value = 2
        box.value = 1
    assert (watch.changed, watch.side_effects, watch.stuck) == ((), (), ())


def test_what_cannot_be_put_back_is_named() -> None:
    """A setting that stays changed is stuck."""
    box = Box()
    with Watch([Setting("box", box.get, box.put)]) as watch:
        box.value, box.locked = 2, True
    assert watch.stuck == ("box",)


def test_what_cannot_be_read_any_more_is_a_change() -> None:
    """A setting that a call made unreadable changed."""
    box = Box()
    with Watch([Setting("box", box.get, box.put)]) as watch:
        box.gone = True
    assert watch.changed == ("box: 1 → OSError: gone",)
    assert watch.stuck == ("box",)


def test_an_exception_passes_and_the_state_is_put_back() -> None:
    """The call's exception is passed on."""
    box = Box()
    with pytest.raises(KeyError), Watch([Setting("box", box.get, box.put)]) as watch:  # noqa: PT012
        box.value = 2
        raise KeyError
    assert (watch.changed, box.value) == (("box: 1 → 2",), 1)


def test_the_floating_point_mode_is_put_back() -> None:
    """A processor that rounds up is set back to nearest."""
    before = float_mode()
    with Watch(settings()) as watch:
        misbehaving._C.fesetround(misbehaving.FE_UPWARD)
        assert float_mode().rounding == "up"
    assert len(watch.changed) == 1
    assert float_mode() == before


def test_a_folder_that_is_gone_is_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose folder was removed cannot return to it."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Watch(settings()) as watch:
        os.chdir(tmp_path)
        (tmp_path / "here").rmdir()
    assert watch.stuck == ("working directory",)


def test_secrets_of_the_environment_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are named, but their values are not reported."""
    monkeypatch.setenv("ATTENTION_TEST_A", "secret")
    monkeypatch.setenv("ATTENTION_TEST_B", "secret")
    with Watch(settings()) as watch:
        os.environ["ATTENTION_TEST_A"] = "another secret"
        del os.environ["ATTENTION_TEST_B"]
        os.environ["ATTENTION_TEST_C"] = "a third one"
    (said,) = watch.side_effects
    assert said == "environment: ATTENTION_TEST_A changed, ATTENTION_TEST_B removed, ATTENTION_TEST_C added"
    assert os.environ["ATTENTION_TEST_A"] == os.environ["ATTENTION_TEST_B"] == "secret"
    assert "ATTENTION_TEST_C" not in os.environ


def test_threads_of_a_library_are_put_back() -> None:
    """NumPy's BLAS has a setting, named after its file."""
    settings = [setting for setting in thread_settings() if "blas" in setting.name]
    if not settings:
        pytest.skip("threadpoolctl knows no BLAS here")
    before = [setting.get() for setting in settings]
    with Watch(settings) as watch:
        for setting in settings:
            setting.put(before[0] + 1)
    changes = zip(settings, before, strict=True)
    assert watch.changed == tuple(f"{one.name}: {was} → {before[0] + 1}" for one, was in changes)
    assert [setting.get() for setting in settings] == before


def test_a_process_without_such_libraries_has_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no setting either where the system does not list the libraries."""
    monkeypatch.setattr(state, "libraries", lambda: SimpleNamespace(lib_controllers=[]))
    assert thread_settings.__wrapped__() == ()
