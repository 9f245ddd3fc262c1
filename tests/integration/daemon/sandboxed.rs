//! A sandboxed server and the daemon: the daemon does not serve it, and no client takes it for a daemon.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::net::UnixStream,
    path::Path,
};

use super::Crib;
use crate::{
    support::program::{code, err},
    support::wait_for,
};

/// A server that runs `script` beside itself.
fn server(name: &str, script: &str, rest: &str) -> String {
    let fixture = crate::support::FIXTURE;
    format!(
        "[servers.{name}]\ncommand = \"/bin/sh\"\nargs = [\"-c\", '({script}) & exec \"$0\"', \"{fixture}\"]\n{rest}\n"
    )
}

/// Waits until a script has written its last line, and returns all that it has written.
fn said(path: &Path) -> String {
    wait_for("the script", || fs::read_to_string(path).is_ok_and(|text| text.ends_with("done\n")));
    fs::read_to_string(path).unwrap()
}

#[toolcrib_testing::requires(guard)]
#[test]
fn the_daemon_refuses_sandboxed_servers() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    let program = env!("CARGO_BIN_EXE_toolcrib");
    let fixture = crate::support::FIXTURE;
    let ask = |file: &str| {
        let file = at(file);
        let file = file.display();
        format!(
            "while ! test -e go; do sleep 0.05; done; \"{program}\" --config servers.toml ps > {file} 2>&1; \
             echo done >> {file}"
        )
    };
    let walls = |more: &str| {
        format!(
            "sandbox = {{ read = [\".\", \"{program}\", \"{fixture}\"], write = [\"{}\"]{more} }}",
            scratch.path().display()
        )
    };
    let config = [
        server("closed", &ask("closed"), &walls(", network = true")),
        server("open", &ask("open"), &walls(", local_sockets = true")),
        // Out of its session, and without the parent that it was started by.
        server(
            "orphan",
            &format!("(setsid sh \"{}\" &)", at("orphan.sh").display()),
            &walls(", local_sockets = true"),
        ),
        server("free", &ask("free"), ""),
    ];
    fs::write(at("orphan.sh"), ask("orphan")).unwrap();
    let crib = Crib::new(&config.concat());
    crib.ok(&["up", "-d"]);
    fs::write(crib.folder().join("go"), "").unwrap();
    let (closed, free) = (said(&at("closed")), said(&at("free")));
    assert!(closed.contains("Operation not permitted"), "{closed}");
    for name in ["open", "orphan"] {
        let open = said(&at(name));
        assert!(open.contains("serves no process in the sandbox of a tool server"), "{name}: {open}");
    }
    assert!(free.contains("closed") && free.contains("ready"), "{free}");
    let stream = UnixStream::connect(crib.socket()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains("greeting"), "{line}");
}

#[toolcrib_testing::requires(guard, python3)]
#[test]
fn a_sandboxed_server_cannot_pose_as_the_daemon() {
    let scratch = tempfile::tempdir().unwrap();
    // It may write in the folder of another configuration's daemon, which is not refused here.
    let folder = scratch.path().join("run/toolcrib");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let victim = Crib::new("[servers.time]\nbuiltin = \"time\"\n");
    let listen = format!(
        "import socket, time\ns = socket.socket(socket.AF_UNIX)\ns.bind(\"{0}/s.sock\")\ns.listen()\n\
         open(\"{0}/there\", \"w\").close()\ntime.sleep(600)\n",
        folder.display()
    );
    fs::write(folder.join("listen.py"), listen).unwrap();
    let script = format!("/usr/bin/python3 {}/listen.py", folder.display());
    let fixture = crate::support::FIXTURE;
    let walls = format!(
        "sandbox = {{ read = [\"{fixture}\"], write = [\"{}\"], local_sockets = true }}",
        scratch.path().display()
    );
    let crib = Crib::new(&server("box", &script, &walls));
    crib.ok(&["up", "-d"]);
    wait_for("the listener", || folder.join("there").exists());
    // Found at the name of the victim's socket.
    victim.ok(&["up", "-d"]);
    let name = victim.socket().file_name().unwrap().to_owned();
    victim.ok(&["down"]);
    fs::rename(folder.join("s.sock"), folder.join(name)).unwrap();
    let ps = victim.command(&["ps"]).env("XDG_RUNTIME_DIR", scratch.path().join("run")).output().unwrap();
    assert_ne!(code(&ps), 0);
    assert!(err(&ps).contains("a process in the sandbox of a tool server listens"), "{}", err(&ps));
}
