//! Parked servers, in all commands.

use super::{Crib, FIXTURE};
use crate::support::program::{code, err};

#[test]
fn parked_servers_start_only_on_request() {
    let crib = Crib::new(
        "[servers.lazy]\ncommand = FIXTURE\nlifecycle = \"lazy\"\n\
         [servers.own]\ncommand = FIXTURE\nscope = \"task\"\n",
    );
    crib.ok(&["up", "-d"]);
    // The first start of a lazy server is how its tools become known.
    crib.ok(&["down"]);
    crib.ok(&["up", "-d"]);
    crib.await_server("lazy", |row| row["state"] == "parked");
    crib.ok(&["wait", "--timeout", "30s"]);
    let started = crib.run(&["start", "lazy"]);
    assert_eq!(code(&started), 0, "{}", err(&started));
    assert!(err(&started).contains("Ready"), "{}", err(&started));
    crib.await_server("lazy", |row| row["state"] == "ready");
    for command in ["start", "restart"] {
        let own = crib.run(&[command, "own"]);
        assert_eq!(code(&own), 0, "{}", err(&own));
        assert!(err(&own).contains("Parked"), "{}", err(&own));
    }
}

#[test]
fn a_wait_that_times_out_names_the_servers() {
    let crib = Crib::new(&format!("{FIXTURE}[servers.slow]\ncommand = \"sleep\"\nargs = [\"600\"]\n"));
    crib.ok(&["up", "-d", "--wait", "any"]);
    let waited = crib.run(&["wait", "--timeout", "100ms"]);
    assert_eq!(code(&waited), 7, "{}", err(&waited));
    assert!(err(&waited).contains("within the time given: slow\n"), "{}", err(&waited));
}

#[toolcrib_testing::requires(guard)]
#[test]
fn ps_counts_all_processes_and_their_cpu_time() {
    let crib =
        Crib::new(&format!("{FIXTURE}[servers.own]\ncommand = FIXTURE\nscope = \"client\"\nspares = 2\n"));
    crib.ok(&["up", "-d"]);
    crib.await_server("own", |row| row["spares"] == 2 && row["state"] == "parked");
    let status = crib.status();
    assert_eq!(status["total"]["procs"], 3, "one that is shared, two spares: {status}");
    assert!(status["total"]["rss_bytes"].as_u64() > status["servers"][0]["rss_bytes"].as_u64(), "{status}");
    assert!(crib.ok(&["ps"]).contains("2 servers | 3 processes"));
    let cores = std::thread::available_parallelism().unwrap().get();
    let cpu = status["servers"][0]["cpu_percent"].as_f64().unwrap();
    assert!(cpu <= 100.0 * (cores + 1) as f64, "{status}");
}
