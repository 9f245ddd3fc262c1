//! Both hold for a thread: each test puts its walls on in one, and looks around.

use std::{
    fs,
    net::{TcpStream, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
    },
    process::{Child, Command},
};

use rustix::{
    net::{AddressFamily, SocketType, socket},
    process::{Pid, Signal, kill_process},
};

use super::*;

fn inside<T: Send>(sandbox: &Sandbox, look: impl FnOnce() -> T + Send) -> T {
    let walls = Walls::build(sandbox, Path::new("/bin/sh"), None).unwrap();
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                walls.put_on().unwrap();
                look()
            })
            .join()
            .unwrap()
    })
}

fn kind<T>(outcome: io::Result<T>) -> Option<io::ErrorKind> {
    outcome.err().map(|error| error.kind())
}

const DENIED: Option<io::ErrorKind> = Some(io::ErrorKind::PermissionDenied);

#[test]
fn files_are_open_as_far_as_they_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in ["read", "write", "other"] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("file"), "text").unwrap();
    }
    let sandbox = Sandbox { read: vec![path("read")], write: vec![path("write")], ..Sandbox::default() };
    inside(&sandbox, || {
        assert_eq!(kind(fs::read(path("read/file"))), None);
        assert_eq!(kind(fs::write(path("read/file"), "")), DENIED);
        assert_eq!(kind(fs::write(path("read/new"), "")), DENIED);
        assert_eq!(kind(fs::write(path("write/new"), "more")), None);
        assert_eq!(kind(fs::remove_file(path("write/file"))), None);
        assert_eq!(kind(fs::read(path("other/file"))), DENIED);
        assert_eq!(kind(fs::read("/etc/shadow")), DENIED);
        assert_eq!(kind(fs::read("/proc/1/environ")), DENIED);
        assert_eq!(kind(fs::read("/usr/bin/env")), None);
        assert_eq!(kind(fs::write("/dev/null", "x")), None);
        // Neither a link nor a move takes a file to where other rights hold.
        assert!(fs::hard_link(path("other/file"), path("write/link")).is_err());
        assert!(fs::rename(path("other/file"), path("write/moved")).is_err());
        std::os::unix::fs::symlink(path("other/file"), path("write/symlink")).unwrap();
        assert_eq!(kind(fs::read(path("write/symlink"))), DENIED);
        assert_eq!(kind(fs::File::create(path("other/file"))), DENIED);
        // A program that is started inside is inside.
        let cat = |path: &Path| Command::new("/bin/cat").arg(path).output().unwrap();
        assert_eq!(cat(&path("read/file")).stdout, b"text");
        assert!(!cat(&path("other/file")).status.success());
    });
}

#[test]
fn without_the_network_no_socket_is_left() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let network = |network: bool| {
        inside(&Sandbox { network, ..Sandbox::default() }, || {
            [
                kind(TcpStream::connect(address)),
                kind(UdpSocket::bind("127.0.0.1:0")),
                kind(std::net::TcpListener::bind("127.0.0.1:0")),
                kind(UnixDatagram::unbound()),
            ]
        })
    };
    assert_eq!(network(false), [DENIED; 4]);
    assert_eq!(network(true), [None; 4]);
}

#[test]
fn a_path_that_is_not_there_is_named() {
    let sandbox = Sandbox { read: vec!["/no/such/folder".into()], ..Sandbox::default() };
    let error = Walls::build(&sandbox, Path::new("/bin/sh"), None).err().unwrap();
    assert!(error.to_string().contains("the sandbox names /no/such/folder"), "{error}");
}

/// A process outside of all walls.
struct Outsider(Child);

impl Outsider {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn nobody_outside_is_looked_into_or_signalled() {
    let outsider = Outsider::start();
    let environment = format!("/proc/{}/environ", outsider.0.id());
    fs::read(&environment).unwrap();
    inside(&Sandbox::default(), || {
        assert_eq!(kind(fs::read(&environment)), DENIED);
        // A server must not be able to end its guard. Landlock keeps it from that from Linux 6.12 on.
        if landlock_abi() >= 6 {
            let signal = kill_process(Pid::from_child(&outsider.0), Signal::TERM);
            assert_eq!(signal, Err(rustix::io::Errno::PERM));
        }
        let mut own = Outsider::start();
        kill_process(Pid::from_child(&own.0), Signal::TERM).unwrap();
        own.0.wait().unwrap();
    });
}

#[test]
fn root_keeps_no_privilege_that_breaks_the_walls() {
    let of = |status: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        CapabilitySet::from_bits_retain(u64::from_str_radix(line.trim(), 16).unwrap())
    };
    inside(&Sandbox::default(), || {
        assert!(rustix::thread::no_new_privs().unwrap());
        // A program that root starts gets all of root's privileges anew, if nothing keeps them from it.
        let started = Command::new("/bin/cat").arg("/proc/self/status").output().unwrap();
        assert!(!of(&String::from_utf8(started.stdout).unwrap()).intersects(BREAKERS));
    });
}

#[test]
fn sockets_without_a_file_are_closed_with_the_network() {
    let name = format!("toolcrib-test-{:016x}", fastrand::u64(..));
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let connect = |network: bool| {
        inside(&Sandbox { network, ..Sandbox::default() }, || kind(UnixStream::connect_addr(&address)))
    };
    assert_eq!(connect(true), None);
    if landlock_abi() >= 6 {
        assert_eq!(connect(false), DENIED);
    }
}

#[test]
fn no_kind_of_socket_and_no_other_number_is_forgotten() {
    inside(&Sandbox::default(), || {
        for (family, kind) in [
            (AddressFamily::INET6, SocketType::DGRAM),
            (AddressFamily::PACKET, SocketType::RAW),
            (AddressFamily::NETLINK, SocketType::RAW),
            (AddressFamily::VSOCK, SocketType::STREAM),
        ] {
            assert_eq!(socket(family, kind, None).err(), Some(rustix::io::Errno::PERM));
        }
        UnixStream::pair().unwrap();
        let python = Path::new("/usr/bin/python3");
        if !python.exists() {
            eprintln!("left out: no /usr/bin/python3 to make system calls by their numbers");
            return;
        }
        // io_uring_setup, and by the numbers of x32 the same and socket.
        let calls = if cfg!(target_arch = "x86_64") { "425, 0x400001a9, 0x40000029" } else { "425" };
        let script = format!(
            "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nfor number in [{calls}]:\n  \
             assert libc.syscall(number, 2, 2, 0) == -1\n  assert ctypes.get_errno() == errno.EPERM, number"
        );
        let output = Command::new(python).args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

#[test]
fn private_keys_beside_public_ones_stay_closed() {
    let open = needs::of(Path::new("/bin/sh"), None);
    for closed in ["/", "/etc", "/etc/ssl/private/key", "/etc/pki/tls/private/key", "/root", "/home", "/tmp"]
    {
        assert!(!open.iter().any(|path| Path::new(closed).starts_with(path)), "{closed} is open");
    }
}
