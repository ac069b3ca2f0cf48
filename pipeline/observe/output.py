"""A text stream that never ends a run: what can't be written is not shown."""

import io
from typing import TextIO


class ForgivingStream(io.TextIOBase):
    """Passes text on until the stream breaks; then it takes all text and shows none.

    A closed pipe or terminal is for good, so nothing is tried again. Characters that the
    encoding lacks are replaced.
    """

    def __init__(self, stream: TextIO | None):
        """Wrap a stream that stays the caller's; None is what `sys.stdout` is when closed."""
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute in the base's stub
        """The stream's encoding, or an empty text where it has none."""
        return "" if self._stream is None else self._stream.encoding or ""

    def isatty(self) -> bool:
        """Return whether the stream is a terminal that still works."""
        try:
            return self._stream is not None and self._stream.isatty()
        except (OSError, ValueError):  # ValueError: the stream was closed
            return False

    def fileno(self) -> int:
        """Return the stream's descriptor, for the size of its terminal."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return self._stream.fileno()

    def write(self, text: str, /) -> int:
        """Write text as far as the stream can; never raises for the stream's sake."""
        if self._stream is not None:
            try:
                _write(self._stream, text)
            except (OSError, ValueError):
                self._stream = None
        return len(text)

    def flush(self) -> None:
        """Flush the stream if it still works."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._stream = None


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError as error:
        stream.write(text.encode(error.encoding, "replace").decode(error.encoding))
