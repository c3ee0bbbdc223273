"""Local files that become inputs, as one request of a store takes them."""

from __future__ import annotations

from pathlib import Path

from corekit.errors import AppError, invalid

#: https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html: 5 GiB
PUT_BYTES_MAX = 5 * 2**30


def check_file(file: Path) -> None:
    """Raise INVALID for a file that cannot be uploaded in one request."""
    try:
        file.name.encode()
        if not file.is_file():
            if file.is_dir():
                raise invalid(f"{str(file)!r} is a folder; files are sent one by one")
            raise invalid(f"there is no file {str(file)!r}")
        if (size := file.stat().st_size) > PUT_BYTES_MAX:
            raise invalid(f"{str(file)!r} has {size} bytes; S3 takes {PUT_BYTES_MAX} at once")
    except UnicodeEncodeError as error:
        raise invalid(f"the name {file.name!r} is not UTF-8, as keys in S3 are") from error
    except OSError as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: OSError) -> AppError:
    return invalid(f"cannot read {str(file)!r}: {error.strerror or error}")
