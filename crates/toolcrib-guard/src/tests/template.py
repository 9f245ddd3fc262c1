"""A template with no more than its protocol. A server runs its first argument as Python. Short names choose a misdeed."""
import ctypes, fcntl, json, os, platform, select, signal, socket, struct, sys, time

libc = ctypes.PyDLL(None, use_errno=True)
CLONE = 220 if platform.machine() == "aarch64" else 56
CLONE_PARENT = 0x8000
PDEATHSIG, SET_NAME, BOUND_DROP, SUBREAPER, SET_MM, AMBIENT = 1, 15, 24, 36, 35, 47
SYS_RESOURCE = 24
orders, reports = socket.socket(fileno=3), socket.socket(fileno=4)


def prctl(*args):
    if libc.prctl(*[ctypes.c_ulong(arg) if isinstance(arg, int) else arg for arg in args]) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def words_of(start):
    return os.pread(start, os.fstat(start).st_size, 0).split(b"\0")[:-1]


def show(args, env):
    """Changes what /proc shows as the command line and the environment of this process."""
    class Map(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end", "auxv")] + [("size", ctypes.c_uint32), ("exe", ctypes.c_uint32)]
    stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    code, end, stack = (int(stat[at - 3]) for at in (26, 27, 28))
    data, data_end, brk = (int(stat[at - 3]) for at in (45, 46, 47))
    args, env = b"".join(arg + b"\0" for arg in args), b"".join(word + b"\0" for word in env)
    show.kept = ctypes.create_string_buffer(args + env)
    at = ctypes.addressof(show.kept)
    middle = at + len(args)
    libc.sbrk.restype = ctypes.c_void_p
    new = Map(code, end, data, data_end, brk, libc.sbrk(0), stack, at, middle, middle, middle + len(env), 0, 0, 0xFFFFFFFF)
    prctl(SET_MM, 14, ctypes.byref(new), ctypes.sizeof(new), 0)


def obey():
    """Gives up the capability to raise limits."""
    prctl(BOUND_DROP, SYS_RESOURCE, 0, 0, 0)
    prctl(AMBIENT, 3, SYS_RESOURCE, 0, 0)
    head, sets = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
    assert libc.capget(head, sets) == 0
    values = [value & ~(1 << SYS_RESOURCE) if at < 3 else value for at, value in enumerate(struct.unpack("=6I", sets.raw))]
    assert libc.capset(head, struct.pack("=6I", *values)) == 0


def serve(guard, talk, files, words, name):
    prctl(PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        return
    high = [fcntl.fcntl(file, fcntl.F_DUPFD, 50) for file in [*files, talk.fileno()]]
    for number, file in enumerate(high):
        os.dup2(file, number)
    os.closerange(4, 1024)
    talk.detach()
    talk = socket.socket(fileno=3)
    count = int(words[2])
    args, env = words[3:3 + count], words[3 + count:]
    try:
        os.setpgid(0, 0)
        os.chdir(words[1])
        os.environb.clear()
        os.environb.update(word.split(b"=", 1) for word in env)
        show(args, env)
        prctl(SET_NAME, name.encode())
        if name == "mute":
            signal.pause()
        while name == "busy":
            pass
        talk.send(b"why it does not want to" if name == "why" else b"ok")
        while (order := talk.recv(64)) != b"go":
            if order != b"obey":
                return
            obey()
            talk.send(b"ok")
    except OSError as error:
        talk.send(b"errno %d" % error.errno)
        return
    talk.close()
    sys.argv = [os.fsdecode(arg) for arg in args]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", 1)
    code = 1
    try:
        exec(sys.argv[1], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        print(type(error).__name__, file=sys.stderr)
    sys.stdout.flush()
    os._exit(code)


def become_guard(files):
    start, control, *stdio = files[:5]
    if not os.read(files[5], 1):
        return
    os.setsid()
    prctl(SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words, own = words_of(start), os.getpid()
    fork = json.loads(words[0])["fork"]
    server = os.fork()
    if server == 0:
        serve(own, theirs, stdio, words, fork["name"])
        os._exit(127)
    if fork["name"] == "lost":
        return
    if fork["name"] == "stuck":
        signal.pause()
    null = os.open("/dev/null", os.O_RDWR)
    kept = [null, null, null, control, start, ours.fileno(), *files[6:]]
    for number, file in enumerate([fcntl.fcntl(file, fcntl.F_DUPFD, 50) for file in kept]):
        os.dup2(file, number)
    os.closerange(len(kept), 1024)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.execve(f"/proc/{os.getppid()}/exe", fork["guard_args"] + [str(server)], fork["guard_env"])


def answer(number, files):
    name = json.loads(words_of(files[0])[0])["fork"]["name"]
    if name == "refused":
        refusal = {"refused": {"errno": None, "what": "too many threads", "help": "end some"}}
        socket.socket(fileno=os.dup(files[1])).send(json.dumps(refusal).encode())
        return -1
    if name == "wrong":
        return os.getppid()
    if name == "asleep":
        signal.pause()
    pid = libc.syscall(CLONE, ctypes.c_ulong(CLONE_PARENT | signal.SIGCHLD), None, None, None, None)
    if pid == 0:
        try:
            become_guard(files)
        finally:
            os._exit(127)
    if name == "slow":  # Until the process that its second argument names has ended.
        while os.path.exists(b"/proc/" + words_of(files[0])[5]):
            time.sleep(0.005)
    return pid


print("a word of the template", file=sys.stderr)
reports.send(b'{"ready":{}}')
while True:
    ready = select.select([orders, reports], [], [])[0]
    if reports in ready:
        break
    request, files, _, _ = socket.recv_fds(orders, 8, 7)
    if len(request) != 8:
        break
    number = struct.unpack("<Q", request)[0]
    pid = answer(number, files)
    for file in files:
        os.close(file)
    orders.send(struct.pack("<Qq", number, pid))
