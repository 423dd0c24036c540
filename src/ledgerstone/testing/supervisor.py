"""The program between the tests and a private server: nothing of the server outlives them.

    owner (the tests) ── supervisor ── server ── its children
                              └─────── daemons that left their parent

The supervisor adopts every process whose parent dies below it (Linux calls that a subreaper), so
"every process of the server" is exactly "every descendant of the supervisor", daemons included.

- When the command exits, what it left running is killed, the shared memory it left in the kernel
  is given back, and the supervisor exits with its code.
- When the owner dies, however it dies, everything is killed and the server's folder is removed.

It is run by path and with the standard library only, so that it starts fast and needs no package:
`python -I -S supervisor.py OWNER FOLDER USER COMMAND…`; an empty USER means the owner's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
LOOKS_MAX = 1000
STATE_ZOMBIE = "Z"
IPC_RMID = 0
# Columns of /proc/sysvipc/shm.
SHM_ID, SHM_CREATOR, SHM_CHANGED_AT = 1, 4, 13


def descendants(root: int) -> dict[int, str]:
    """Every living process below `root` with its state letter, read from /proc."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (seen := _stat(entry)):
            state, parent = seen
            children.setdefault(parent, []).append((int(entry.name), state))
    found: dict[int, str] = {}
    unvisited = [root]
    while unvisited:
        for pid, state in children.get(unvisited.pop(), ()):
            unvisited.append(pid)
            if state != STATE_ZOMBIE:
                found[pid] = state
    return found


def _stat(process: Path) -> tuple[str, int] | None:
    try:
        text = (process / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command's name stands in brackets and may itself hold brackets and blanks.
    state, parent = text.rpartition(")")[2].split()[:2]
    return state, int(parent)


def send(pid: int, signum: signal.Signals) -> None:
    """Signal a process; one that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def freeze(root: int) -> set[int]:
    """Stop every descendant of `root`, and name them.

    A process with a pending signal cannot fork any more, so once a look finds nobody new there is
    nobody left to find.
    """
    frozen: set[int] = set()
    for _ in range(LOOKS_MAX):
        found = descendants(root).keys() - frozen
        if not found:
            return frozen
        for pid in found:
            send(pid, signal.SIGSTOP)
        frozen |= found
    raise RuntimeError(f"processes below {root} appear faster than they can be stopped")


def kill_tree(root: int) -> None:
    """SIGKILL every descendant of `root`; frozen first, so that none sees another one die."""
    for pid in freeze(root):
        send(pid, signal.SIGKILL)


def supervise(owner: int, folder: str, user: str, command: list[str]) -> int:
    """Run the command until it exits or the owner dies; return the command's exit code."""
    started_at = int(time.time())
    _adopt_orphans()
    server = _spawn(command, folder, user)
    threading.Thread(target=_kill_after, args=(owner,), daemon=True).start()
    codes = _reap(until=server.pid)
    kill_tree(os.getpid())
    codes |= _reap()
    _release_shared_memory(codes.keys(), started_at)
    if os.getppid() != owner:
        shutil.rmtree(folder, ignore_errors=True)
    return codes[server.pid]


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refuses PR_SET_CHILD_SUBREAPER")


def _spawn(command: list[str], folder: str, user: str) -> subprocess.Popen[bytes]:
    stdin = subprocess.DEVNULL
    if not user:
        return subprocess.Popen(
            command, cwd=folder, stdin=stdin, start_new_session=True, umask=0o077
        )
    group = Path(folder).stat().st_gid
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=stdin,
        start_new_session=True,
        umask=0o077,
        user=user,
        group=group,
        extra_groups=[],
    )


def _kill_after(owner: int) -> None:
    # A pipe would stay open in the owner's forked children; a pidfd knows the owner only.
    with contextlib.suppress(ProcessLookupError):
        watched = os.pidfd_open(owner)
        if os.getppid() == owner:
            select.select([watched], [], [])
    kill_tree(os.getpid())


def _reap(until: int | None = None) -> dict[int, int]:
    """Wait for children, adopted ones too, until one of them or all have exited; their codes."""
    codes: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while until not in codes:
            pid, status = os.waitpid(-1, 0)
            codes[pid] = os.waitstatus_to_exitcode(status)
    return codes


def _release_shared_memory(creators: Collection[int], started_at: int) -> None:
    """Remove the System V segments of processes that are gone: a power cut would not keep them."""
    libc = ctypes.CDLL(None)
    table = Path("/proc/sysvipc/shm")
    for line in table.read_text().splitlines()[1:] if table.exists() else ():
        segment = [int(field) for field in line.split()]
        # A process id may have been another's before: its segments are older than the server.
        if segment[SHM_CREATOR] in creators and segment[SHM_CHANGED_AT] >= started_at:
            libc.shmctl(segment[SHM_ID], IPC_RMID, None)


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
