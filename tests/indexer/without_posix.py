"""Hide what Windows lacks, and refuse what Windows refuses, in this process and its children.

Imported as `sitecustomize`. A stand-in for a machine that is not here: it shows calls of missing functions, files that
are replaced or removed while they are open, text mode, and flushes of files that were opened for reading. It does not
show other separators, reserved names or real locks of other programs.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import os
import signal
import socket
import subprocess
import types
from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_O_BINARY = 1 << 30
_MODULES = ("fcntl", "resource", "pwd", "grp", "termios")
_MISSING = ("preadv", "preadv2", "pread", "pwrite", "posix_fadvise", "O_DIRECT", "O_NOFOLLOW", "O_NONBLOCK",
            "O_DIRECTORY", "O_CLOEXEC", "fchmod", "geteuid", "getuid", "nice", "killpg", "mkfifo", "statvfs", "fork",
            "getpgid", "setsid", "sched_getaffinity", "sched_setaffinity", "getloadavg", "sysconf", "uname", "chown",
            "sendfile", "copy_file_range", "setpriority", "sync")  # fmt: skip
_MISSING_SIGNALS = ("SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGPIPE", "SIGTSTP", "SIGCONT",
                    "SIGWINCH", "setitimer", "alarm", "pthread_sigmask")  # fmt: skip
_text_mode: set[int] = set()
_changed: dict[str, types.ModuleType] = {}
_import, _open, _read, _close, _fsync = builtins.__import__, os.open, os.read, os.close, os.fsync
_ACCESS_MODE = 3


class _Module(types.ModuleType):
    """A module of the standard library as the modules of desk-rag see it; libraries see the real one."""

    def __init__(self, real: Any, missing: tuple[str, ...], **changed: object) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(changed)
        self._real, self._missing = real, missing

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)


def _hidden_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    module = _import(name, globals, locals, fromlist, level)
    if not str((globals or {}).get("__name__", "")).startswith("desk_rag"):
        return module
    if name in _MODULES:
        raise ImportError(f"No module named {name!r}")
    return _changed.get(name, module)


def open_of_windows(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise ValueError("dir_fd unavailable on this platform")
    if isinstance(path, str | os.PathLike) and os.path.isdir(path):  # noqa: PTH112
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
    descriptor = _open(path, flags & ~_O_BINARY, mode)
    if not flags & _O_BINARY and os.fspath(path) != os.devnull:
        _text_mode.add(descriptor)
    return descriptor


def read_of_windows(descriptor: int, length: int) -> bytes:
    assert descriptor not in _text_mode, "a file in text mode ends at its first Ctrl+Z on Windows"
    return _read(descriptor, length)


def close_of_windows(descriptor: int) -> None:
    _text_mode.discard(descriptor)
    _close(descriptor)


def fsync_of_windows(descriptor: int) -> None:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:  # noqa: PTH123
        flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
    if flags & _ACCESS_MODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    _fsync(descriptor)


def _is_open(path: str) -> bool:
    """Return whether this process has the file open or mapped."""
    real = os.path.realpath(path)
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}") == real:  # noqa: PTH115
                return True
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123
        return any(line.rstrip("\n").endswith(f" {real}") for line in lines)


def _refusing(original: Any) -> Any:
    def changed(*paths: Any, **named: Any) -> Any:
        if any(value is not None for key, value in named.items() if key.endswith("dir_fd")):
            raise ValueError("dir_fd unavailable on this platform")
        for path in paths:
            if isinstance(path, str | bytes | os.PathLike) and _is_open(os.fsdecode(path)):
                log = os.environ.get("OPEN_FILES_LOG")
                if log:
                    with open(log, "a", encoding="utf-8") as out:  # noqa: PTH123
                        out.write(f"{original.__name__} {os.fsdecode(path)}\n")
                raise PermissionError(errno.EACCES, "The process cannot access the file", os.fsdecode(path))
        return original(*paths, **named)

    return changed


class _CDLL(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in ("malloc_trim", "inotify_init", "inotify_init1"):
            raise AttributeError(name)
        return super().__getattr__(name)


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *arguments: Any, env: Any = None, **named: Any) -> None:
        if env is not None:
            env = {**env, "PYTHONPATH": f"{_FOLDER}{os.pathsep}{env.get('PYTHONPATH', '')}"}
        super().__init__(*arguments, env=env, **named)


def hide() -> None:
    """Change this process."""
    for name in ("replace", "rename", "unlink", "remove", "rmdir"):
        setattr(os, name, _refusing(getattr(os, name)))  # pathlib calls them, too
    own = {"open": open_of_windows, "read": read_of_windows, "close": close_of_windows, "fsync": fsync_of_windows}
    _changed["os"] = _Module(os, _MISSING, O_BINARY=_O_BINARY, supports_dir_fd=set(), **own)
    _changed["signal"] = _Module(signal, _MISSING_SIGNALS)
    _changed["socket"] = _Module(socket, ("AF_UNIX",))
    _changed["ctypes"] = _Module(ctypes, (), CDLL=_CDLL)
    _changed["subprocess"] = _Module(subprocess, (), Popen=_Popen)
    builtins.__import__ = _hidden_import


if __name__ == "sitecustomize":
    hide()
