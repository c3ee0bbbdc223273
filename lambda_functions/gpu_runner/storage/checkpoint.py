"""The checkpoint of a job: a folder of the user's code that its next attempt continues from.

One object, a tar, replaced as a whole and by one attempt at a time: each write is conditional on
the version that this attempt has read or written last (PutObject's If-Match and If-None-Match). So
a start that lost its attempt, and saves late, does not replace what the next attempt has saved.
"""

from __future__ import annotations

import logging
import os
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from contract.aws.clients import quoted
from contract.envelope import Job
from contract.keys import checkpoint_key
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, StorageError
from lambda_functions.gpu_runner.sandbox import open_plain
from lambda_functions.gpu_runner.storage.s3 import S3, download, etag_of, s3_errors

LOG = logging.getLogger(__name__)

#: The largest object of one PutObject (S3 user guide, "Uploading objects"): conditions hold for it.
BYTES_MAX = 5 * 2**30


class Checkpoint:
    """The folder, and its copy in the bucket. For one thread at a time."""

    def __init__(self, s3: S3, job: Job, folder: Path, temporary: Path) -> None:
        """`folder` is made; the archive lies in `temporary` for a moment."""
        self._s3 = s3
        self._bucket, self._key = job.intermediate_bucket, checkpoint_key(job.job_id)
        self.folder = folder
        self._temporary = temporary
        self._etag = ""  #: of the object that this attempt read or wrote; "" = there is none
        self._saved: object = ()  #: what the folder held then
        self._is_replaced = self._warned = False
        folder.mkdir()

    def restore(self) -> bool:
        """Fill the folder with what an earlier attempt saved; False: there is nothing.

        Raises AttemptFailed(INPUT_ERROR): beginning again in silence would lose the work.
        """
        try:
            self._etag = etag_of(self._s3, self._bucket, self._key) or ""
            if not self._etag:
                return False
            with tempfile.NamedTemporaryFile(dir=self._temporary) as archive:
                place, etag = Path(archive.name), self._etag
                download(self._s3, place, bucket=self._bucket, key=self._key, etag=etag)
                with tarfile.open(place) as tar:
                    tar.extractall(self.folder, filter="data")
        except (StorageError, OSError, tarfile.TarError) as error:
            raise AttemptFailed(Reason.INPUT_ERROR, f"the checkpoint: {error}") from None
        self._saved = self._contents()
        return True

    def save(self) -> bool:
        """Store the folder, if it changed; True: the object is what the folder was.

        Raises StorageError, OSError: the next save may succeed.
        """
        contents = self._contents()
        if self._is_replaced:
            return False
        if contents == self._saved:
            return bool(self._etag)
        with tempfile.TemporaryFile(dir=self._temporary) as archive:
            self._pack(archive)
            if (size := archive.tell()) > BYTES_MAX:
                raise OSError(f"it has {size} bytes, more than {BYTES_MAX}")
            archive.seek(0)
            return self._put(archive, contents)

    def remove(self) -> None:
        """Delete the object of a job that has its result. Raises StorageError."""
        if self._etag and not self._is_replaced:
            with s3_errors(f"delete s3://{self._bucket}/{self._key}"):
                self._s3.delete_object(Bucket=self._bucket, Key=self._key)

    def _pack(self, archive: IO[bytes]) -> None:
        """Write what `restore` accepts. By descriptors: the code runs, and may replace a folder by
        a link to what it may not read itself."""
        left_out, is_folder = list[str](), False
        with tarfile.open(fileobj=archive, mode="w") as tar:
            walked = os.fwalk(self.folder, follow_symlinks=False)
            for path, folders, files, inside in walked:
                is_folder = True
                below = Path(path).relative_to(self.folder)
                for name in (*folders, *files):
                    if not _add(tar, self.folder, str(below / name), name, inside):
                        left_out.append(str(below / name))
        if not is_folder:
            raise OSError(f"{self.folder.name} is not a folder any more")
        if left_out and not self._warned:
            self._warned = True
            LOG.warning("a checkpoint has files, folders and links within it, not %s", left_out[0])

    def _put(self, archive: object, contents: object) -> bool:
        condition = {"IfMatch": quoted(self._etag)} if self._etag else {"IfNoneMatch": "*"}
        try:
            with s3_errors(f"write s3://{self._bucket}/{self._key}"):
                reply = self._s3.put_object(
                    Bucket=self._bucket, Key=self._key, Body=archive, **condition
                )
        except StorageError as error:
            if error.status != 412:
                raise
            self._is_replaced = True
            LOG.warning("another attempt of the job has saved a checkpoint: this one saves no more")
            return False
        self._etag, self._saved = str(reply["ETag"]).strip('"'), contents
        return True

    def _contents(self) -> object:
        """Equal as long as no file of the folder changed."""
        found = []
        for path in sorted(self.folder.rglob("*")):
            try:
                status = path.lstat()
            except OSError:
                continue  # the code replaces its files meanwhile
            found.append((str(path), status.st_size, status.st_mtime_ns, status.st_ino))
        return found


def _add(tar: tarfile.TarFile, top: Path, path: str, name: str, inside: int) -> bool:
    """Add one entry of `inside`, an open folder below `top`; False: of another kind, or gone."""
    try:
        status = os.lstat(name, dir_fd=inside)
        entry = tarfile.TarInfo(path)
        entry.mode, entry.mtime = stat.S_IMODE(status.st_mode) | stat.S_IRUSR, status.st_mtime
        if stat.S_ISDIR(status.st_mode):
            entry.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=inside)
            tarfile.data_filter(entry, str(top))
        else:
            with open_plain(name, inside) as file:
                if file is None:
                    return False
                entry.size = os.fstat(file.fileno()).st_size
                tar.addfile(entry, file)
            return True
    except (FileNotFoundError, tarfile.FilterError):
        return False
    tar.addfile(entry)
    return True
