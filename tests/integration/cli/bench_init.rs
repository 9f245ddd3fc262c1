//! Tests `bench init` as a command: what it measures, draws, saves and compares, not how fast it is.

use serde_json::Value;
use toolcrib_guard::HAS_GUARDS;

use crate::{
    support::browser::{SIZES, fits},
    support::program::{Bench, code, err, out},
};

/// One that starts, one without a process, and one that fails with words that must not become markup.
const CONFIG: &str = r#"
[servers.works]
command = FIXTURE
[servers.calc]
builtin = "calc"
[servers.broken]
command = "/bin/sh"
args = ["-c", "echo '</script><script>alert(1)</script>' >&2; exit 3"]
"#;

fn document(bench: &Bench, arguments: &[&str]) -> Value {
    let output = bench.run(&[&["--json", "bench", "init", "--runs", "1"], arguments].concat());
    assert_eq!(code(&output), 0, "{}", err(&output));
    serde_json::from_str(&out(&output)).unwrap()
}

fn modes(document: &Value) -> Vec<&str> {
    document["modes"].as_array().unwrap().iter().map(|mode| mode["mode"].as_str().unwrap()).collect()
}

#[test]
fn every_mode_reports_what_it_started_and_how_long() {
    let bench = Bench::new(CONFIG);
    let document =
        document(&bench, &["--mode", "spare,lazy,warm,cold", "--mode", "sequential,parallel,warm"]);
    assert_eq!(modes(&document), ["sequential", "parallel", "cold", "warm", "lazy", "spare"]);
    for mode in document["modes"].as_array().unwrap() {
        let is_lazy = mode["mode"] == "lazy";
        assert!(mode["ready"] == 2 && mode["total"] == 3, "{mode}");
        assert!(mode["wall_ms"]["min"].as_f64().unwrap() > 0.0, "{mode}");
        let states: Vec<&str> =
            mode["servers"].as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
        if mode["mode"] == "spare" {
            assert!(states.is_empty() && mode["picture"].is_null(), "nothing was started: {mode}");
            continue;
        }
        assert_eq!(states[2], "failed", "{mode}");
        assert_eq!(states[0], if is_lazy { "parked" } else { "ready" }, "{mode}");
        assert_eq!(mode["first_call"].is_object(), is_lazy, "{mode}");
        if HAS_GUARDS && !is_lazy {
            assert!(mode["peak_rss_bytes"].as_u64().unwrap() > 0, "{mode}");
            assert!(mode["own_rss_bytes"].as_u64().unwrap() > 0, "{mode}");
            assert!(mode["own_cpu_ms"].as_f64().unwrap() > 0.0, "{mode}");
            assert!(mode["servers"][0]["rss_bytes"].as_u64().unwrap() > 0, "{mode}");
        }
    }
}

#[test]
fn the_page_loads_nothing_and_escapes_server_text() {
    let bench = Bench::new(CONFIG);
    let document = document(&bench, &["--html", "page.html", "--save", "saved.json"]);
    let page = std::fs::read_to_string(bench.0.path().join("page.html")).unwrap();
    let policy =
        "http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"";
    assert!(page.contains(policy), "{page}");
    // The data is the only script element, and it is no script.
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    assert_eq!(page.matches("</script").count(), 1, "{page}");
    assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)"), "{page}");
    let drawings: Vec<&str> = page.split("<svg class=\"waterfall ").skip(1).collect();
    assert_eq!(drawings.len(), 4, "parallel and sequential, for wide windows and for narrow ones");
    // Bars of all modes are to one scale: the marks of time are at the same places.
    let marks = |drawing: &str| -> Vec<String> {
        drawing
            .split("<text class=\"axis\" x=\"")
            .skip(1)
            .map(|mark| mark.split('"').next().unwrap().to_owned())
            .collect()
    };
    assert!(!marks(drawings[0]).is_empty() && marks(drawings[0]) == marks(drawings[2]), "{page}");
    for drawing in drawings {
        let rows: Vec<&str> = drawing.split("<g class=\"server\">").skip(1).collect();
        assert_eq!(rows.len(), 3, "{drawing}");
        assert!(rows[0].contains(">works</text>") && rows[1].contains(">calc</text>"), "{drawing}");
        assert!(rows[2].contains("class=\"cap\"") && rows[2].contains("exited with code 3"), "{drawing}");
        assert_eq!(drawing.matches("all ready at").count(), 1, "{drawing}");
    }
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    let data: Value = serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(data, document);
    let saved = std::fs::read_to_string(bench.0.path().join("saved.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&saved).unwrap(), document);
}

#[test]
fn regressions_fail_only_when_asked_for() {
    let bench = Bench::new(CONFIG);
    let mut then = document(&bench, &["--no-baseline", "--save", "then.json"]);
    assert_eq!(modes(&then), ["parallel"]);
    let compare = |arguments: &[&str]| {
        let fixed = ["bench", "init", "--runs", "1", "--no-baseline", "--compare", "then.json"];
        bench.run(&[&fixed[..], arguments].concat())
    };
    // A time that no start can reach.
    then["modes"][0]["wall_ms"]["min"] = 0.001.into();
    bench.file("then.json", &then.to_string());
    let told = compare(&[]);
    assert!(code(&told) == 0 && out(&told).contains("against then.json"), "{}", err(&told));
    let slower = compare(&["--max-regression", "50"]);
    assert!(code(&slower) == 100 && err(&slower).contains("parallel: wall +"), "{}", err(&slower));

    then["modes"][0]["wall_ms"]["min"] = 1e9.into();
    bench.file("then.json", &then.to_string());
    assert_eq!(code(&compare(&["--max-regression", "50"])), 0);
    then["modes"][0]["ready"] = 3.into();
    bench.file("then.json", &then.to_string());
    let fewer = compare(&["--max-regression", "50"]);
    assert!(code(&fewer) == 100 && err(&fewer).contains("2 ready, then 3"), "{}", err(&fewer));
}

#[test]
fn incomparable_input_is_refused_before_measuring() {
    let bench = Bench::new(CONFIG);
    let row = |server: &str| {
        format!(
            r#"{{"mode": "parallel", "ready": 0, "total": 1, "wall_ms": {{}}, "cpu_ms": 1, "peak_rss_bytes": 1,
            "servers": [{{"name": "{server}", "state": "failed"}}]}}"#
        )
    };
    let of = |modes: &str| {
        format!(
            r#"{{"schema": 1, "runs": 1, "jobs": 2, "modes": [{modes}], "lower_bound_ms": 1, "bottleneck": "-"}}"#
        )
    };
    let cases = [
        ("{", "not JSON"),
        ("{}", "no schema"),
        (r#"{"schema": 2}"#, "schema 2, and only 1 is known"),
        (r#"{"schema": 1, "rows": []}"#, "not a document of `bench init`"),
        (&of(&row("elsewhere")), "only there: elsewhere; only here: works, calc, broken"),
    ];
    for (text, wanted) in cases {
        bench.file("then.json", text);
        let refused = bench.run(&["bench", "init", "--compare", "then.json"]);
        assert_eq!(code(&refused), 2, "{}", err(&refused));
        assert!(err(&refused).contains(wanted), "{text}: {}", err(&refused));
        assert!(!err(&refused).contains("Measured"), "{}", err(&refused));
    }
    bench.file("other.toml", "[servers.works]\nbuiltin = \"time\"\n");
    for (given, wanted) in [
        ("none.json", "--compare takes the file of an earlier measurement, and there is no file none.json"),
        ("sequential", "modes are set side by side in every measurement: --mode sequential,parallel"),
        ("other.toml", "another configuration is measured in the same run: --against other.toml"),
    ] {
        let refused = bench.run(&["bench", "init", "--compare", given]);
        assert!(code(&refused) == 2 && err(&refused).contains(wanted), "{given}: {}", err(&refused));
    }
    let help = out(&bench.run(&["bench", "init", "--help"]));
    assert!(
        help.contains("--compare <FILE>") && help.contains("the JSON document that `--save FILE` wrote"),
        "{help}"
    );
    for arguments in [&["--mode", "parallel", "--drop-caches"][..], &["--call", "works.echo"]] {
        let refused = bench.run(&[&["bench", "init"], arguments].concat());
        assert_eq!(code(&refused), 2, "{}", err(&refused));
    }
}

#[test]
fn the_waterfall_is_drawn_when_asked_for() {
    let bench = Bench::new(CONFIG);
    let drawn = bench.run(&["bench", "init", "--runs", "1", "--no-baseline", "--waterfall"]);
    assert_eq!(code(&drawn), 0, "{}", err(&drawn));
    let text = out(&drawn);
    let rows: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("a row per server")).skip(1).collect();
    assert!(rows[0].starts_with("works") && rows[0].contains("tools"), "{text}");
    assert!(rows[1].starts_with("calc") && rows[2].starts_with("broken") && rows[2].contains("xx"), "{text}");
    assert!(
        rows[3].contains("all ready at") && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    let plain = bench.run(&["bench", "init", "--runs", "1", "--no-baseline"]);
    assert!(!out(&plain).contains("a row per server"), "{}", out(&plain));
}

#[toolcrib_testing::requires(chromium)]
#[test]
fn the_page_fits_narrow_windows() {
    let long = "a-server-with-a-name-that-goes-on-and-on-and-on";
    let bench = Bench::new(&format!("{CONFIG}[servers.{long}]\ncommand = FIXTURE\n"));
    let output =
        bench.run(&["bench", "init", "--runs", "1", "--mode", "parallel,sequential", "--html", "page.html"]);
    assert_eq!(code(&output), 0, "{}", err(&output));
    let page = std::fs::read_to_string(bench.0.path().join("page.html")).unwrap();
    for size in SIZES {
        fits(&bench, &page, size);
    }
}

#[test]
fn two_configurations_are_measured_alternately_and_compared() {
    let bench = Bench::new("[servers.works]\ncommand = FIXTURE\nargs = [\"init-delay=400\"]\n");
    let text = std::fs::read_to_string(bench.0.path().join("servers.toml")).unwrap();
    bench.file("other.toml", &text.replace("init-delay=400", "init-delay=0"));
    let arguments = ["bench", "init", "--runs", "2", "--mode", "parallel", "--against", "other.toml"];
    let output = bench.run(&[&["--json"], &arguments[..]].concat());
    assert_eq!(code(&output), 0, "{}", err(&output));
    let document: Value = serde_json::from_str(&out(&output)).unwrap();
    let least = |document: &Value| document["modes"][0]["wall_ms"]["min"].as_f64().unwrap();
    assert!(least(&document) >= 400.0 && least(&document["against"]) < least(&document), "{document}");
    let change = &document["comparison"]["modes"][0];
    for figure in ["wall_ratio", "median_ratio", "first_tool_ratio", "cpu_ratio"] {
        assert!(change[figure].as_f64().unwrap() > 0.0, "{figure}: {change}");
    }
    let ratio = least(&document) / least(&document["against"]);
    assert!((change["wall_ratio"].as_f64().unwrap() - ratio).abs() < 1e-9 && ratio > 1.0, "{change}");

    let slower = bench.run(&[&arguments[..], &["--max-regression", "10"]].concat());
    assert_eq!(code(&slower), 100, "{}", err(&slower));
    let measured: Vec<String> = err(&slower)
        .lines()
        .filter(|line| line.contains("Measured parallel"))
        .map(ToOwned::to_owned)
        .collect();
    let of_other: Vec<bool> = measured.iter().map(|line| line.contains("other.toml")).collect();
    assert_eq!(of_other, [false, true, true, false], "each goes first once: {measured:?}");
    assert!(
        out(&slower).contains("against other.toml (least times and their middle, same run"),
        "{}",
        out(&slower)
    );
    assert!(out(&slower).contains("all modes of "), "{}", out(&slower));
    let both = bench.run(&[&arguments[..], &["--compare", "x.json"]].concat());
    assert!(code(&both) == 2 && err(&both).contains("cannot be used with"), "{}", err(&both));
}

/// The first start of all goes through a parent that takes 64 MB and stays, as a package runner does.
#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "needs /proc")]
fn measured_memory_is_repeatable() {
    let script = "if [ -e seen ]; then exec \\\"$@\\\"; fi; touch seen; \
        hold=$(head -c 64000000 /dev/zero | tr '\\\\0' x); \\\"$@\\\"; unset hold";
    let bench = Bench::new(&format!(
        "[servers.works]\ncommand = \"/bin/sh\"\nargs = [\"-c\", \"{script}\", \"sh\", FIXTURE]\n"
    ));
    let peak = || {
        let document = document(&bench, &["--mode", "parallel"]);
        document["modes"][0]["peak_rss_bytes"].as_f64().unwrap()
    };
    let (first, second) = (peak(), peak());
    assert!(bench.0.path().join("seen").exists() && second > 0.0);
    assert!((first / second - 1.0).abs() < 0.2, "{first} and {second}");
}
