"""Reading a file that a person or this package wrote, which is small: what never ends is refused, not read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["read_small_file"]

_LIMIT_BYTES = 1 << 20


def read_small_file(path: Path) -> str:
    """The text of a regular file of at most 1 MiB; a pipe is not waited for, and a device not read.

    Raises:
        OSError: There is none, it cannot be read, or it is no such file; `strerror` says which.
        UnicodeDecodeError: It is not UTF-8.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), str(path)) from error
    with open(fd, "rb") as stream:  # noqa: PTH123  # Path.open cannot open without waiting for a pipe's writer
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = stream.read(_LIMIT_BYTES + 1)
    if len(data) > _LIMIT_BYTES:
        raise OSError(errno.EFBIG, "larger than 1 MiB", str(path))
    return data.decode("utf-8")
