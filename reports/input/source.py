"""A result file as the reports count it: what it is, and how many of its records were read, used and refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attention_conformance.impls import compressed
from attention_conformance.impls.contract import InputError

#: Bytes of the largest file that is read: a run of 50,000 results and 2,000 cells has about 60 MB, and JSON takes
#: several times its size in memory.
LARGEST = 1 << 29

#: Why a record is not used that is as good as the one that is.
AGAIN = "of a case or cell that an earlier file has"


class ReportError(InputError, ValueError):
    """A file that cannot be reported on; the text is one sentence that names it."""


@dataclass(frozen=True)
class Source:
    """One file: what it is, where it was made, and how many of its records were read, used and refused."""

    path: Path
    kind: str
    environment: dict[str, Any]
    read: int
    used: int
    #: Why the others were not used, with their numbers.
    refused: dict[str, int] = field(default_factory=dict)
    complete: bool = True
    #: Packages that were not installed, by implementation.
    not_installed: tuple[str, ...] = ()


def text_of(path: Path) -> str:
    """The text of a file, compressed or not.

    Raises
    ------
    ReportError : for one that is missing, empty, too large or no text.
    """
    try:
        text = compressed.read(path, LARGEST).decode("utf-8")
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist") from None
    except compressed.TooLarge as error:
        raise ReportError(f"{path} {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None
    if not text.strip():
        raise ReportError(f"{path} is empty")
    return text
