"""A server that tells, as JSON, all that it sees of its process; or ends in the way that its first argument says."""

import shared_lib
import atexit
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import uuid


class Thing:
    pass


class Last:
    def __del__(self):
        import textwrap

        os.write(1, textwrap.dedent("  its end is told\n").encode())


def suspended():
    try:
        yield
    finally:
        os.write(1, b"the generator has ended\n")


def square(number):
    return number * number


def stream(file):
    names = ("encoding", "errors", "line_buffering", "write_through", "newlines", "name", "mode")
    about = {name: repr(getattr(file, name, None)) for name in names}
    raw = file.buffer if isinstance(file.buffer, __import__("io").FileIO) else file.buffer.raw
    about.update(seekable=file.seekable(), tty=file.isatty(), buffer=type(file.buffer).__name__, fd=file.fileno(), raw=raw.mode)
    return about


def processes():
    """Multiprocessing, pickle, asyncio with threads and subprocesses, TLS."""
    import asyncio, concurrent.futures, multiprocessing, pickle, ssl, subprocess, threading

    async def run():
        name = await asyncio.to_thread(lambda: threading.current_thread().name)
        process = await asyncio.create_subprocess_exec("env", stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        return name, sorted(out.decode().splitlines()), process.returncode

    found = {"asyncio": asyncio.run(run()), "ssl": len(ssl.create_default_context().get_ciphers())}
    for kind in ("spawn", "forkserver", "fork"):
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(kind)) as pool:
            found[kind] = pool.submit(square, 7).result()
    found["pickle"] = type(pickle.loads(pickle.dumps(Thing()))) is Thing, pickle.dumps(Thing(), 0).decode()
    found["interpreter"] = subprocess._args_from_interpreter_flags()
    found["child"] = subprocess.check_output([sys.executable, "-c", "import sys, signal; print(sys.flags, signal.getsignal(13))"]).decode()
    return found


def status(*names):
    lines = [line.split() for line in open("/proc/self/status") if line.split(":")[0] in names]
    # Without the two signals that the C library keeps for itself: nobody can set them.
    return [[name, int(value, 16) & ~(3 << 31) if name.startswith("Sig") else value] for name, value in lines]


def dump():
    import ctypes, locale

    main = sys.modules["__main__"]
    names = {name: repr(value) for name, value in vars(main).items() if name.startswith("__")}
    pdeathsig = ctypes.c_int()
    libc = ctypes.CDLL(None)
    libc.prctl(2, ctypes.byref(pdeathsig), 0, 0, 0)
    libc.getenv.restype = ctypes.c_char_p
    facts = {
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": repr(sys.flags),
        "options": [sys.warnoptions, sys._xoptions], "executable": [sys.executable, sys._base_executable, sys.prefix],
        "main": names, "main_is_main": main.__dict__ is globals(), "implementation": sys.dont_write_bytecode,
        "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
        "same_streams": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__],
        "environment": list(os.environ.items()), "bytes": len(os.environb), "type": repr(type(os.environ)),
        "c": [repr(libc.getenv(name.encode())) for name in ("PATH", "OWN", "SHARED_LIB_LEVEL", "NOT_SET")],
        "proc": [open("/proc/self/" + name, errors="replace").read() for name in ("cmdline", "environ", "comm")],
        "signals": [repr(signal.getsignal(number)) for number in range(1, 65)],
        "status": status("SigBlk", "SigIgn", "SigCgt", "Threads", "Umask", "NoNewPrivs", "Seccomp", "CoreDumping"),
        "limits": [resource.getrlimit(number) for number in range(16)], "group": os.getpgid(0) == os.getpid(),
        "cwd": os.getcwd(), "files": sorted(os.listdir("/proc/self/fd")), "pdeathsig": pdeathsig.value,
        "time": [time.tzname, time.timezone], "locale": [locale.getlocale(), locale.setlocale(locale.LC_ALL)],
        "encodings": [sys.getfilesystemencoding(), locale.getpreferredencoding(), sys.getdefaultencoding()],
        "hooks": [sys.excepthook is sys.__excepthook__, sys.meta_path and [repr(type(f)) for f in sys.meta_path], repr(sys.gettrace())],
        "functions": [repr(os.getcwd), repr(os.getpid), repr(shared_lib.getcwd), type(sys.argv).__name__, type(shared_lib.argv).__name__],
        "argv_is_one": shared_lib.argv is sys.argv, "level": shared_lib.LEVEL, "written": os.environ.get("SHARED_LIB_WROTE"),
        "seeded": shared_lib.SEEDED.random(), "folder": tempfile.gettempdir(), "nice": os.nice(0), "limit": sys.getrecursionlimit(),
        "oom": open("/proc/self/oom_score_adj").read(), "processes": processes() if sys.argv[1] == "dump" else None,
    }
    by_chance = [random.random(), shared_lib.BY_CHANCE.random(), str(uuid.uuid4()), tempfile.mktemp(), shared_lib.authkey()]
    print(json.dumps({"facts": facts, "by_chance": by_chance}))


def main():
    how = sys.argv[1] if len(sys.argv) > 1 else "dump"
    atexit.register(lambda: os.write(1, b"at exit, main has %d file\n" % hasattr(sys.modules["__main__"], "__file__")))
    if how in ("dump", "light"):
        dump()
    elif how == "error":
        raise ValueError("an error")
    elif how == "chained":
        try:
            [][1]
        except IndexError as error:
            raise RuntimeError("the second") from error
    elif how == "code":
        sys.exit(3)
    elif how == "words":
        sys.exit("words")
    elif how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    elif how == "text":
        exec("1/0")
    elif how == "hook":
        sys.excepthook = lambda *args: print("hook", args[0], args[2].tb_frame.f_code.co_filename, file=sys.stderr)
        raise ValueError("for the hook")
    elif how == "bad_hook":
        sys.excepthook = lambda *args: 1 / 0
        raise ValueError("for the hook")
    elif how == "thread":
        import threading

        threading.Thread(target=lambda: (time.sleep(0.2), print("the thread has ended"))).start()
    elif how == "unflushed":
        sys.stdout.write("no newline")
    elif how == "quick":  # Told as the modules of the template are cleared, if they are.
        import weakref

        sys.kept = weakref.ref(shared_lib.KEPT, lambda _, write=os.write: write(1, b"an object of the library has ended\n"))
    elif how == "detached":
        sys.stdout = open(sys.stdout.detach().fileno(), "w", closefd=False)
        print("not flushed, by another stream")
    elif how == "own_end":
        sys.modules["__main__"].LAST = Last()
    elif how == "library_end":
        shared_lib.LAST = Last()
    elif how == "library_generator":
        shared_lib.LAST = suspended()
        next(shared_lib.LAST)
    elif how == "library_file":
        shared_lib.LAST = open(os.dup(1), "w")
        shared_lib.LAST.write("not flushed")
    elif how == "library_database":
        import sqlite3

        for file in ("data", "data-wal", "data-shm"):
            if os.path.exists(file):
                os.remove(file)
        shared_lib.LAST = sqlite3.connect("data")
        shared_lib.LAST.execute("pragma journal_mode = wal")
        shared_lib.LAST.execute("create table data (one)")
    elif how == "os_exit":
        os._exit(9)
    elif how == "echo":
        for line in sys.stdin:
            print(line.strip()[::-1], flush=True)
    elif how == "wait":
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
