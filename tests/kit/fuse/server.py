"""A pass-through FUSE file system over a folder, spoken straight to /dev/fuse.

A node is an open descriptor (O_PATH) of the file below, so hard links, renames and deleted files
that are still open behave as they do there. Locks and mappings are the kernel's own business.
The operations named as `missing` are refused, as by a file system without them.
"""

import ctypes
import errno
import os
import resource
import stat
import struct
import threading
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

MAX_WRITE = 1 << 20
THREADS = 4
ROOT = 1
VALID = 1  # seconds that the kernel may keep names and attributes

_HEADER = struct.Struct("<IIQQIIIHH")
_ATTR = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_INIT = struct.Struct("<4I2H2I2H8I")
_SETATTR = struct.Struct("<2I6Q8I")
# ASYNC_READ, BIG_WRITES, AUTO_INVAL_DATA, ASYNC_DIO, PARALLEL_DIROPS, MAX_PAGES
_FLAGS = 1 << 0 | 1 << 5 | 1 << 12 | 1 << 15 | 1 << 18 | 1 << 22
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _ATIME_NOW, _MTIME_NOW = 1, 2, 4, 8, 16, 32, 128, 256
_NOT_PASSED = os.O_DIRECT | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = (*[ctypes.c_char_p] * 3, ctypes.c_ulong, ctypes.c_char_p)
_at = ctypes.c_int, ctypes.c_char_p
_libc.renameat2.argtypes = (*_at, *_at, ctypes.c_uint)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def called(result: int) -> None:
    """Raise OSError if a function of libc has failed."""
    if result < 0:
        raise OSError(number := ctypes.get_errno(), os.strerror(number))


def mount(source: str, place: Path, kind: str, options: str) -> None:
    # 6: without devices and set-user-id programs
    called(_libc.mount(source.encode(), os.fsencode(place), kind.encode(), 6, options.encode()))


def unmount(place: Path) -> None:
    """Take the mount away now, and the file system as soon as nothing in it is open."""
    called(_libc.umount2(os.fsencode(place), 2))


_OPERATIONS = """
1:lookup 2:forget 3:getattr 4:setattr 5:readlink 6:symlink 8:mknod 9:mkdir 10:unlink 11:rmdir
12:rename 13:link 14:open 15:read 16:write 17:statfs 18:release 20:fsync 25:flush 26:init 27:open
28:readdir 29:release 30:fsync 35:create 36:interrupt 38:destroy 42:batch_forget 43:fallocate
45:rename2 46:lseek
"""
_NO_ANSWER = {2, 36, 42}  # forget, interrupt, batch_forget


class _Request(NamedTuple):
    node: int
    body: memoryview

    def fields(self, form: str) -> tuple[int, ...]:
        return struct.unpack_from("<" + form, self.body)

    def names(self, start: int = 0) -> list[bytes]:
        return bytes(self.body[start:]).split(b"\0")[:-1]


class Server:
    """Answers the requests for one mount until it is gone."""

    def __init__(self, backing: Path, place: Path, missing: Collection[str] = ()) -> None:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        os.umask(0)
        self._guard = threading.Lock()
        root = os.open(backing, os.O_PATH)
        self._nodes = {ROOT: root}
        self._lookups = {ROOT: 1}
        self._numbers = {_identity(os.fstat(root)): ROOT}
        self._next = ROOT
        self._listings: dict[int, list[tuple[bytes, int, int]]] = {}
        self._operations: dict[int, Callable[[_Request], bytes | None]] = {
            int(opcode): getattr(self, f"_{name}")
            for opcode, name in (pair.split(":") for pair in _OPERATIONS.split())
            if name not in missing
        }
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        mount("standfast", place, "fuse", options + ",default_permissions,allow_other")

    def start(self) -> None:
        for _ in range(THREADS):
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        buffer = bytearray(MAX_WRITE + 4096)
        view = memoryview(buffer)
        while True:
            try:
                size = os.readv(self._fuse, [buffer])
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, *_ = _HEADER.unpack_from(view)
            code, answer = 0, b""
            try:
                if opcode not in self._operations:
                    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
                request = _Request(node, view[_HEADER.size : size])
                answer = self._operations[opcode](request) or b""
                if opcode in _NO_ANSWER:
                    continue
            except OSError as error:
                code = error.errno or errno.EIO
            except Exception:
                traceback.print_exc()
                code = errno.EIO
            head = struct.pack("<IiQ", 16 + len(answer), -code, unique)
            try:
                os.writev(self._fuse, [head, answer])
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENODEV):  # interrupted, unmounted
                    raise

    def _init(self, request: _Request) -> bytes:
        _, minor, ahead, flags = request.fields("4I")
        pages = MAX_WRITE // 4096
        return _INIT.pack(
            7, min(minor, 38), ahead, flags & _FLAGS, 64, 48, MAX_WRITE, 1, pages, *[0] * 9
        )

    def _nothing(self, request: _Request) -> None:
        pass

    _flush = _interrupt = _destroy = _nothing

    # Nodes

    def _fd(self, request: _Request) -> int:
        return self._nodes[request.node]

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self._nodes[node]}"

    def _entry(self, folder: int, name: bytes) -> bytes:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._nodes[folder])
        status = os.fstat(fd)
        with self._guard:
            node = self._numbers.get(_identity(status))
            if node is None:
                self._next += 1
                node = self._numbers[_identity(status)] = self._next
                self._nodes[node], self._lookups[node] = fd, 0
            else:
                os.close(fd)
            self._lookups[node] += 1
        return _ENTRY.pack(node, 0, VALID, VALID, 0, 0) + _attributes(status)

    def _lookup(self, request: _Request) -> bytes:
        return self._entry(request.node, request.names()[0])

    def _forget(self, request: _Request) -> None:
        self._drop(request.node, request.fields("Q")[0])

    def _batch_forget(self, request: _Request) -> None:
        count = request.fields("I")[0]
        for number in range(count):
            self._drop(*struct.unpack_from("<QQ", request.body, 8 + 16 * number))

    def _drop(self, node: int, count: int) -> None:
        with self._guard:
            self._lookups[node] -= count
            if self._lookups[node] <= 0 and node != ROOT:
                del self._lookups[node]
                fd = self._nodes.pop(node)
                del self._numbers[_identity(os.fstat(fd))]
                os.close(fd)

    # Attributes

    def _getattr(self, request: _Request) -> bytes:
        return struct.pack("<QII", VALID, 0, 0) + _attributes(os.fstat(self._fd(request)))

    def _setattr(self, request: _Request) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = (
            _SETATTR.unpack_from(request.body)
        )
        path = self._path(request.node)
        if valid & (_UID | _GID):
            os.chown(path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME):
            old, now = os.stat(path), time.time_ns()
            times = [
                (_ATIME, _ATIME_NOW, old.st_atime_ns, atime * 10**9 + atime_ns),
                (_MTIME, _MTIME_NOW, old.st_mtime_ns, mtime * 10**9 + mtime_ns),
            ]
            atime, mtime = (
                (now if valid & is_now else given) if valid & is_set else kept
                for is_set, is_now, kept, given in times
            )
            os.utime(path, ns=(atime, mtime))
        return self._getattr(request)

    def _statfs(self, request: _Request) -> bytes:
        found = os.fstatvfs(self._nodes[ROOT])
        blocks = found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        return struct.pack(
            "<5Q10I", *blocks, found.f_bsize, found.f_namemax, found.f_frsize, *[0] * 7
        )

    # Names

    def _readlink(self, request: _Request) -> bytes:
        return os.readlink(b"", dir_fd=self._fd(request))

    def _symlink(self, request: _Request) -> bytes:
        name, target = request.names()
        os.symlink(target, name, dir_fd=self._fd(request))
        return self._entry(request.node, name)

    def _mknod(self, request: _Request) -> bytes:
        mode, device, _, _ = request.fields("4I")
        name = request.names(16)[0]
        os.mknod(name, mode, device, dir_fd=self._fd(request))
        return self._entry(request.node, name)

    def _mkdir(self, request: _Request) -> bytes:
        mode, _ = request.fields("2I")
        name = request.names(8)[0]
        os.mkdir(name, mode, dir_fd=self._fd(request))
        return self._entry(request.node, name)

    def _unlink(self, request: _Request) -> None:
        os.unlink(request.names()[0], dir_fd=self._fd(request))

    def _rmdir(self, request: _Request) -> None:
        os.rmdir(request.names()[0], dir_fd=self._fd(request))

    def _rename(self, request: _Request) -> None:
        self._renamed(request, request.fields("Q")[0], 0, request.names(8))

    def _rename2(self, request: _Request) -> None:
        folder, flags, _ = request.fields("QII")
        self._renamed(request, folder, flags, request.names(16))

    def _renamed(self, request: _Request, folder: int, flags: int, names: list[bytes]) -> None:
        old, new = names
        called(_libc.renameat2(self._fd(request), old, self._nodes[folder], new, flags))

    def _link(self, request: _Request) -> bytes:
        (source,) = request.fields("Q")
        name = request.names(8)[0]
        os.link(self._path(source), name, dst_dir_fd=self._fd(request), follow_symlinks=True)
        return self._entry(request.node, name)

    # Files

    def _open(self, request: _Request) -> bytes:
        flags = request.fields("I")[0] & ~_NOT_PASSED
        return struct.pack("<QII", os.open(self._path(request.node), flags), 0, 0)

    def _create(self, request: _Request) -> bytes:
        flags, mode, _, _ = request.fields("4I")
        name = request.names(16)[0]
        given = flags & ~os.O_DIRECT & ~os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        fd = os.open(name, given, mode, dir_fd=self._fd(request))
        return self._entry(request.node, name) + struct.pack("<QII", fd, 0, 0)

    def _read(self, request: _Request) -> bytes:
        file, offset, size = request.fields("QQI")
        return os.pread(file, size, offset)

    def _write(self, request: _Request) -> bytes:
        file, offset, size = request.fields("QQI")
        return struct.pack("<II", os.pwrite(file, request.body[40 : 40 + size], offset), 0)

    def _fallocate(self, request: _Request) -> None:
        file, offset, length, mode = request.fields("3QI")
        called(_libc.fallocate(file, mode, offset, length))

    def _lseek(self, request: _Request) -> bytes:
        file, offset, whence = request.fields("QQI")
        return struct.pack("<Q", os.lseek(file, offset, whence))

    def _fsync(self, request: _Request) -> None:
        os.fsync(request.fields("Q")[0])

    def _release(self, request: _Request) -> None:
        file = request.fields("Q")[0]
        self._listings.pop(file, None)
        os.close(file)

    def _readdir(self, request: _Request) -> bytes:
        folder, offset, size = request.fields("QQI")
        if offset == 0:
            self._listings[folder] = _listing(folder)
        answer = b""
        for number, (name, inode, kind) in enumerate(self._listings[folder][offset:], offset + 1):
            entry = struct.pack("<QQII", inode, number, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _attributes(status: os.stat_result) -> bytes:
    times = status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns
    seconds, rest = zip(*(divmod(ns, 10**9) for ns in times), strict=True)
    of_node = status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_rdev
    size = status.st_size, status.st_blocks
    return _ATTR.pack(status.st_ino, *size, *seconds, *rest, *of_node, status.st_blksize, 0)


def _listing(folder: int) -> list[tuple[bytes, int, int]]:
    here = os.fstat(folder).st_ino
    found = [(b".", here, stat.S_IFDIR >> 12), (b"..", here, stat.S_IFDIR >> 12)]
    with os.scandir(folder) as entries:
        for entry in entries:
            kind = 4 if entry.is_dir(follow_symlinks=False) else 10 if entry.is_symlink() else 0
            found.append((os.fsencode(entry.name), entry.inode(), kind))
    return found
