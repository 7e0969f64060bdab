"""Why a folder of vectors or results is refused: one class for each way, all of them VectorError, each one sentence.

Both kinds of folder are data from anywhere.  What is refused is refused whole, before anything in it is believed.
"""

from __future__ import annotations

from conformance.strict import plain


class VectorError(ValueError):
    """Vectors or results that cannot be used; the text is one sentence that names the file."""

    def __init__(self, text: str) -> None:
        super().__init__(plain(text))


class MissingPackage(VectorError):
    """The package that reads and writes safetensors is not installed."""


class NothingSelected(VectorError):
    """The options name no case."""


class NotEmpty(VectorError):
    """The folder to write to holds something already."""


class Unreadable(VectorError):
    """A file is missing, is no regular file, or cannot be read."""


class TooLarge(VectorError):
    """A file is larger than any that the format has."""


class OutsideFolder(VectorError):
    """A file name leads out of the folder, or could."""


class LinkOutside(VectorError):
    """A symbolic link leads out of the folder."""


class WrongHash(VectorError):
    """A file is not the one that the index was written with."""


class WrongFormat(VectorError):
    """Vectors of another version of the format."""


class WrongSpec(VectorError):
    """Vectors of another version of the spec."""


class NotJson(VectorError):
    """A document is not JSON in UTF-8."""


class DuplicateKey(VectorError):
    """A JSON object has a key twice."""


class NotANumber(VectorError):
    """A JSON document has NaN, an infinity, or a number beyond float64."""


class WrongFields(VectorError):
    """A field of a document is missing, unknown, or not what it should be."""


class Repeated(VectorError):
    """A case and dtype, or a file, stands twice in the index; or a case has two results."""


class Pickled(VectorError):
    """A pickle, or an archive that may hold one, in the place of safetensors.  Nothing is ever unpickled."""


class HeaderTooLarge(VectorError):
    """The header of a safetensors file is longer than any that is needed."""


class Truncated(VectorError):
    """A safetensors file ends before its header, or the data that the header tells of."""


class UnknownDtype(VectorError):
    """An array of a dtype that the format does not have."""


class WrongSize(VectorError):
    """An array's bytes are not as many as its shape and dtype need, or bytes belong to no array."""


class BadOffsets(VectorError):
    """An array's bytes do not lie where bytes can lie."""


class Overlap(VectorError):
    """Two arrays share bytes."""


class BadBoolean(VectorError):
    """A byte of a boolean array is neither 0 nor 1."""


class Unsound(VectorError):
    """The safetensors package refuses what the checks before it let through."""


class WrongArrays(VectorError):
    """The arrays of a vector are not those that its description names, or do not fit together."""


class BadBound(VectorError):
    """A bound that is NaN, infinite or negative, so that it bounds nothing."""
