//! Effects that packages have, or values that they make by chance, as they are imported: a fork has them as an ordinary start
//! has, and never from another server.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use toolcrib::manager::Borrower;

use super::script_server;
use crate::support::python::{PythonLab, ask, forked};

/// Python code of one server alone.
const PATCH: &str = "
import os, ssl, json, signal, resource, socket, logging, warnings
os.umask(0)
ssl._create_default_https_context = ssl._create_unverified_context
os.environ.setdefault('OF_ONE_SERVER', 'secret')
plain = json.dumps
def dumps(value, *args, **kwargs): return plain(value, *args, **kwargs)
json.dumps = dumps
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.nice(3)
socket.setdefaulttimeout(7)
logging.basicConfig(level=logging.DEBUG)
warnings.simplefilter('ignore')
";
/// Python code of all servers.
const KEYS: &str = "
import os, ssl, ctypes, random, time
KEYS = [os.getrandom(8).hex(), ssl.RAND_bytes(8).hex(), random.Random(time.time_ns()).getrandbits(64)]
with open('/dev/urandom', 'rb', buffering=0) as file:
    KEYS.append(file.read(8).hex())
place = ctypes.create_string_buffer(8)
ctypes.CDLL(None).getrandom(place, 8, 0)
KEYS.append(place.raw.hex())
class Session:
    BORN = time.time_ns()
KEYS.append(Session.BORN)
";
const SERVER: &str = "
import sys
import keys_lib
import heavy_lib
import tool_server
def tell():
    import json, logging, os, resource, signal, socket, ssl, warnings
    umask = os.umask(0)
    os.umask(umask)
    root = logging.getLogger()
    return {'forked': tool_server.was_forked(), 'keys': keys_lib.KEYS, 'state': [
        umask, str(ssl._create_default_https_context().verify_mode), json.dumps.__module__, os.environ.get('OF_ONE_SERVER'),
        sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))), resource.getrlimit(resource.RLIMIT_CORE), os.nice(0),
        socket.getdefaulttimeout(), root.level, len(root.handlers), [str(part) for part in warnings.filters],
        [name for name in ('patch_lib', 'heavy_lib', 'keys_lib') if name in sys.modules],
    ]}
if __name__ == '__main__':
    tool_server.serve({'tell': tell})
";
const COUNT: usize = 6;

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_nothing_that_another_import_did() {
    let lab = PythonLab::new(&[]);
    for (name, text) in [("patch_lib", PATCH), ("keys_lib", KEYS), ("heavy_lib", "PART = 1\n")] {
        std::fs::write(lab.site().join(format!("{name}.py")), text).unwrap();
    }
    let servers = (0..COUNT).map(|number| {
        let before = if number == 0 { "import patch_lib\n" } else { "" };
        script_server(&lab, &format!("s{number}"), &format!("{before}{SERVER}"))
    });
    let manager = lab.manager(servers).await;
    let mut ordinary = ask(&manager.lend(Borrower::Task), "tell").await;
    assert!(ordinary.iter().all(|said| said["forked"] == false), "{ordinary:?}");
    ordinary.sort_by_key(|said| said["state"][3] == Value::Null);
    let patched = &ordinary[0]["state"];
    assert!(patched[1] == "0" && patched[2] == "patch_lib" && patched[3] == "secret", "{patched}");
    assert_ne!(&ordinary[1]["state"], patched);

    let mut keys = BTreeSet::new();
    let mut add_keys = |said: &Value| {
        for key in said["keys"].as_array().unwrap() {
            assert!(keys.insert(key.to_string()), "the same key in two servers: {said}");
        }
    };
    ordinary.iter().for_each(&mut add_keys);
    // From the template of all of them, and from one for each program that imports more.
    for _ in 0..3 {
        let (_loan, mut told) = forked(&manager, "tell").await;
        told.sort_by_key(|said| said["state"][3] == Value::Null);
        for (said, ordinary) in told.iter().zip(&ordinary) {
            assert_eq!(said["state"], ordinary["state"]);
            add_keys(said);
        }
    }
    let names = json!(["patch_lib", "heavy_lib", "keys_lib"]);
    assert_eq!(ordinary[0]["state"][11], names, "it imports all of them by itself");
    manager.shutdown().await;
    lab.lab.await_nobody();
}

#[toolcrib_testing::requires(guard, python3_venv)]
#[tokio::test(flavor = "multi_thread")]
async fn variables_that_python_sets_at_its_start_stay() {
    let lab = PythonLab::new(&[]);
    std::fs::write(lab.site().join("of_all.pth"), "import os; os.environ['OF_PYTHON'] = 'set'\n").unwrap();
    let text = "
import tool_server
def tell():
    import os
    return {'forked': tool_server.was_forked(), 'variable': os.environ.get('OF_PYTHON')}
if __name__ == '__main__':
    tool_server.serve({'tell': tell})
";
    let manager =
        lab.manager((0..COUNT).map(|number| script_server(&lab, &format!("s{number}"), text))).await;
    for _ in 0..3 {
        for said in ask(&manager.lend(Borrower::Task), "tell").await {
            assert_eq!(said["variable"], "set", "{said}");
        }
    }
    manager.shutdown().await;
    lab.lab.await_nobody();
}
