"""The request to start a server, and the system calls for it. Sixth part of the program, after members.py."""

import ctypes
import fcntl
import json
import stat
import struct

ZYGOTE, MANAGER = 3, 4
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_MM, PR_SET_CHILD_SUBREAPER = 1, 15, 35, 36
PR_SET_MM_MAP = 14
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_GET_NO_NEW_PRIVS = 23, 24, 39
CAP_SETPCAP, CAP_SYS_RESOURCE = 8, 24
CLONE_PARENT = 0x8000
CLONE = {"x86_64": 56}.get(os.uname().machine, 220)
NOT_STARTED = 127
# Variables that the interpreter, the C library and compiled modules read without `os.environ`.
READ_AT_START = (
    "PYTHON", "LC_", "LANG=", "LANGUAGE=", "LD_", "GLIBC_", "MALLOC_", "GCONV_PATH=", "OPENSSL_", "OMP_", "KMP_",
    "OPENBLAS_", "MKL_", "BLIS_", "NUMEXPR_", "CUDA_", "RUST_", "RAYON_", "TOKIO_", "SETUPTOOLS_", "COVERAGE_",
)  # fmt: skip
libc = ctypes.PyDLL(None, use_errno=True)  # Keeps the lock of the interpreter: a fork must hold it.


class Refusal(Exception):
    """This request is not served; the reason in words."""


def checked(outcome: int) -> int:
    if outcome == -1:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return outcome


def prctl(option: int, *args) -> None:
    values = [ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args]
    checked(libc.prctl(option, *values, *[ctypes.c_ulong(0)] * (4 - len(args))))


def give_up(capability: int) -> None:
    """Gives up a capability below 32 for good, as the guard of an ordinary start does for its server."""
    head, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    checked(libc.capget(head, sets))
    held = struct.unpack("=6I", sets.raw)  # Effective, permitted and inheritable ones, of low numbers and of high ones.
    if held[0] & 1 << CAP_SETPCAP:
        prctl(PR_CAPBSET_DROP, capability)
    if any(part & 1 << capability for part in held[:3]):
        # Of the ambient ones it goes with these.
        left = [part & ~(1 << capability) for part in held[:3]]
        checked(libc.capset(head, struct.pack("=6I", *left, *held[3:])))
    has_new = os.geteuid() == 0 and checked(libc.prctl(PR_GET_NO_NEW_PRIVS, *[ctypes.c_ulong(0)] * 4)) == 0
    if has_new and checked(libc.prctl(PR_CAPBSET_READ, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3)):
        raise Refusal("a limit cannot be enforced for root here: a capability cannot be given up (no CAP_SETPCAP)")


def lasting_memory(data: bytes) -> int:
    """The address of a copy of `data` that is never freed, not even while the interpreter ends."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, len(data) + 1, 3, 0x22, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        checked(-1)
    ctypes.memmove(address, data, len(data))
    return address


def set_command_line(args: bytes, env: "bytes | None" = None) -> int:
    """Sets what others see in /proc/PID/cmdline and environ. Returns where the copy of `args + env` is."""
    with open("/proc/self/stat", "rb") as file:
        fields = [b"", b"", *file.read().rpartition(b")")[2].split()]
    numbers = {number: int(fields[number - 1]) for number in (26, 27, 28, 45, 46, 47, 50, 51)}
    start = lasting_memory(args + (env or b""))
    end = start + len(args)
    environment = (numbers[50], numbers[51]) if env is None else (end, end + len(env))
    libc.sbrk.restype = ctypes.c_void_p
    libc.sbrk.argtypes = [ctypes.c_long]
    code = (numbers[26], numbers[27], numbers[45], numbers[46], numbers[47], libc.sbrk(0), numbers[28])
    layout = struct.pack("=12QII", *code, start, end, *environment, 0, 0, 0xFFFFFFFF)
    prctl(PR_SET_MM, PR_SET_MM_MAP, layout, len(layout))
    return start


def open_files() -> "list[int]":
    return [int(name) for name in os.listdir("/proc/self/fd")]


def keep_only(files: "dict[int, int]") -> None:
    """Makes the values of `files` the only descriptors, each at the number that is its key."""
    high = {number: fcntl.fcntl(file, fcntl.F_DUPFD, 64) for number, file in files.items()}
    for file in open_files():
        if file not in high.values():
            try:
                os.close(file)
            except OSError:
                pass  # The descriptor that has listed them.
    for number, file in high.items():
        os.dup2(file, number)
        os.close(file)


class Variables:
    """An environment as the kernel has it, searched without making copies of it."""

    def __init__(self, block: "bytes | bytearray", start: int):
        self.block, self.start = block, start  # `block[start - 1]` is a zero byte.

    def count(self, prefix: bytes) -> int:
        return self.block.count(b"\0" + prefix, self.start - 1, len(self.block) - 1)

    def differs(self, prefix: bytes, own: "list[bytes]") -> bool:
        """Whether the variables whose `NAME=value` begins so are others than those of `own`."""
        begins = [variable for variable in own if variable.startswith(prefix)]
        count = self.count(prefix)
        if not prefix:  # All but our marks.
            marks = tuple(name.encode() + b"=" for name in MARKS)
            begins = [variable for variable in begins if not variable.startswith(marks)]
            count -= sum(map(self.count, marks))
        missing = any(self.block.find(b"\0" + variable + b"\0", self.start - 1) < 0 for variable in begins)
        return missing or count != len(begins)


class Start:
    """The request to start a server: the content of the file in memory, and what is taken from it."""

    def __init__(self, memory: int, command: "list[bytes]"):
        self.data = bytearray(b"\0") + bytes(os.fstat(memory).st_size)
        with memoryview(self.data) as view:
            read = 1
            while read < len(self.data):
                count = os.preadv(memory, [view[read:]], read - 1)
                if count == 0:
                    raise Refusal("the request is too short")
                read += count
        self._at = 1
        try:
            self._read(command)
        except BaseException:
            self.overwrite()
            raise

    def _read(self, command: "list[bytes]") -> None:
        self.header = self._word()
        self.folder = os.fsdecode(self._word())
        count = int(self._word())
        self._args = self._at
        given = [self._word()]
        flags, self.kind, name = self._program(count, given)
        if flags != command[1:]:
            raise Refusal("the flags of Python are others than those of the template")
        if os.path.realpath(given[0]) != os.path.realpath(command[0]) or (
            os.path.dirname(given[0]) != os.path.dirname(command[0])
        ):
            raise Refusal("its Python is another than that of the template")
        self.name = os.fsdecode(name)
        self.words = len(given)  # Of the command line, up to the program.
        for _ in range(count - len(given)):
            self._at = self._end() + 1
        self._env = self._at
        self.environment = Variables(self.data, self._env)

    def _program(self, count: int, given: "list[bytes]") -> "tuple[list[bytes], str, bytes]":
        """The flags of Python, one letter each, and what it runs. No word more is copied: the arguments of the server may be secret."""
        flags: "list[bytes]" = []

        def word() -> bytes:
            if len(given) >= count:
                raise Refusal("neither a module nor a script is started")
            given.append(self._word())
            return given[-1]

        while True:
            letters = word()
            if not letters.startswith(b"-"):
                return flags, "script", letters
            if letters[1:2] in (b"", b"-", b"c"):
                raise Refusal("neither a module nor a script is started")
            for at in range(1, len(letters)):
                letter, rest = letters[at : at + 1], letters[at + 1 :]
                if letter == b"m":
                    return flags, "module", rest or word()
                flags.append(b"-" + letter)
                if letter in (b"W", b"X"):
                    flags.append(rest or word())
                    break

    def _end(self) -> int:
        end = self.data.find(b"\0", self._at)
        if end < 0:
            raise Refusal("the request is too short")
        return end

    def _word(self) -> bytes:
        end = self._end()
        word, self._at = bytes(self.data[self._at : end]), end + 1
        return word

    def args(self) -> bytes:
        return bytes(self.data[self._args : self._env])

    def variables(self) -> bytes:
        return bytes(self.data[self._env :])

    def path0(self) -> str:
        """The first folder for modules, as the interpreter finds it."""
        if self.kind == "module":
            return os.path.realpath(self.folder)
        return os.path.dirname(os.path.realpath(os.path.join(self.folder, self.name)))

    def overwrite(self) -> None:
        self.data[:] = bytes(len(self.data))
