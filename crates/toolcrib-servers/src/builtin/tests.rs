//! Tests the tools directly, and one server with a real client in memory.

use serde_json::json;

use super::*;

fn parse(name: &str, args: &[&str], base: &Path) -> Result<Builtin, String> {
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    let http = HttpClients::new(&HttpConfig::default()).unwrap();
    Builtin::parse(name, &args, &Site { base, http: &http, extractor: None, variable: |_| None })
}

fn call(server: &Builtin, tool: &str, arguments: Value) -> Result<String, String> {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcome = runtime.block_on(server.clone().run(tool.to_owned(), arguments)).unwrap();
    match outcome.expect("the tool exists") {
        Ok(Output::Text(text) | Output::Both(text, _)) => Ok(text),
        Ok(Output::Data(data)) => Ok(data.to_string()),
        Err(why) => Err(why),
    }
}

#[test]
fn calculations_are_exact_and_end_in_time() {
    let server = Builtin::Calc(calc::Calc::default());
    let calc = |expression: &str| call(&server, "evaluate", json!({"expression": expression}));
    assert_eq!(calc("1/3 + 1/6").unwrap(), "0.5");
    assert_eq!(calc("0.1 + 0.2").unwrap(), "0.3");
    assert_eq!(calc("2^100").unwrap(), "1267650600228229401496703205376");
    assert!(calc("9^9^9^9").is_err());
    assert!(calc("1 +").unwrap_err().starts_with("cannot evaluate"));
}

#[test]
fn times_handle_time_zones_and_dst_gaps() {
    let time = |tool: &str, arguments: Value| call(&Builtin::Time, tool, arguments);
    let zones = json!({"time": "2026-07-01T12:00", "from_zone": "Europe/Berlin", "to_zone": "Asia/Tokyo"});
    assert!(time("convert", zones).unwrap().contains("2026-07-01T19:00:00+09:00"));
    let gap = json!({"time": "2026-03-29T02:30", "from_zone": "Europe/Berlin", "to_zone": "UTC"});
    let gap = time("convert", gap).unwrap();
    assert!(gap.contains("does not exist there") && gap.contains("2026-03-29T01:30:00+00:00"), "{gap}");
    let apart = json!({"from_zone": "UTC", "to_zone": "Asia/Kathmandu", "at": "2026-01-01T00:00"});
    assert!(time("difference", apart).unwrap().contains("+05:45"));
    assert!(time("now", json!({"time_zone": "Mars/Base"})).unwrap_err().contains("no time zone `Mars/Base`"));
    assert!(time("now", json!({"zone": "UTC"})).unwrap_err().contains("unknown field"));
}

#[test]
fn files_stay_in_their_folder() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "hidden").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir(root.join("sub")).unwrap();
    std::fs::write(root.join("a.txt"), "one\ntwo\nthree\n").unwrap();
    std::fs::write(root.join("sub/b.rs"), "fn two() {}\n").unwrap();
    std::fs::write(root.join("c.bin"), [1, 0, 2]).unwrap();
    std::os::unix::fs::symlink(outside.path(), root.join("link")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("secret"), root.join("file-link")).unwrap();
    let server = parse("files", &["."], root).unwrap();
    let files = |tool: &str, arguments: Value| call(&server, tool, arguments);
    assert_eq!(files("list", json!({"recursive": true})).unwrap(), "a.txt  14\nc.bin  3\nsub/\nsub/b.rs  12");
    assert_eq!(files("read", json!({"path": "a.txt", "from_line": 2, "lines": 1})).unwrap(), "two");
    assert_eq!(files("search", json!({"pattern": "tw."})).unwrap(), "a.txt:2: two\nsub/b.rs:1: fn two() {}");
    assert_eq!(
        files("search", json!({"pattern": "two", "glob": "*.rs"})).unwrap(),
        "sub/b.rs:1: fn two() {}"
    );
    let absolute = outside.path().join("secret");
    for path in ["../x", "link/secret", "file-link", "/etc/passwd", absolute.to_str().unwrap()] {
        let refused = files("read", json!({"path": path})).unwrap_err();
        assert!(!refused.contains("hidden"), "{path}: {refused}");
    }
    assert!(files("list", json!({"path": "link"})).is_err());
    assert!(files("read", json!({"path": "c.bin"})).unwrap_err().contains("not a text file"));
    assert_eq!(files("read", json!({"path": "gone"})).unwrap_err(), "there is no `gone`");
}

#[test]
fn absolute_paths_lead_into_the_folder_only() {
    let parent = tempfile::tempdir().unwrap();
    let parent = parent.path().canonicalize().unwrap();
    let (root, alias) = (parent.join("root"), parent.join("alias"));
    for folder in ["root/sub", "root-2"] {
        std::fs::create_dir_all(parent.join(folder)).unwrap();
        std::fs::write(parent.join(folder).join("a.txt"), folder).unwrap();
    }
    std::os::unix::fs::symlink(&root, &alias).unwrap();
    std::os::unix::fs::symlink(parent.join("root-2"), root.join("way-out")).unwrap();
    for configured in [&root, &alias] {
        let server = parse("files", &[configured.to_str().unwrap()], Path::new("/")).unwrap();
        let at = |path: &str| format!("{}/{path}", configured.display());
        let read = |path: String| call(&server, "read", json!({"path": path}));
        let list = |path: String| call(&server, "list", json!({"path": path}));
        assert_eq!(read(at("sub/a.txt")).unwrap(), "root/sub");
        assert_eq!(read(at("/sub/./a.txt")).unwrap(), "root/sub");
        assert_eq!(
            read(format!("{}/sub/a.txt", root.display())).unwrap(),
            "root/sub",
            "by its real name too"
        );
        assert_eq!(list(at("sub")).unwrap(), "sub/a.txt  8");
        assert_eq!(list(configured.display().to_string()).unwrap(), list(".".to_owned()).unwrap());
        assert_eq!(
            call(&server, "search", json!({"path": at("sub"), "pattern": "o"})).unwrap(),
            "sub/a.txt:1: root/sub"
        );
        let ways_out = [
            at("../root-2/a.txt"),
            at("sub/../../root-2/a.txt"),
            at("way-out/a.txt"),
            format!("{}-2/a.txt", configured.display()),
            format!("{}/root-2/a.txt", parent.display()),
            "/etc/hostname".to_owned(),
        ];
        for path in ways_out {
            let refused = read(path.clone()).unwrap_err();
            assert!(refused.contains("outside") || refused.contains("there is no"), "{path}: {refused}");
        }
        let told = read("/etc/hostname".to_owned()).unwrap_err();
        assert_eq!(told, format!("`/etc/hostname` is outside of the folder {}", configured.display()));
    }
}

#[test]
fn pipes_and_devices_are_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::write(root.join("a.txt"), "one\n").unwrap();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), fifo, 0o600.into(), 0).unwrap();
    let _listening = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
    // An endless device, where one may be made.
    let endless = rustix::fs::makedev(1, 5);
    let device = rustix::fs::FileType::CharacterDevice;
    let _ = rustix::fs::mknodat(rustix::fs::CWD, root.join("zero"), device, 0o600.into(), endless);
    let server = parse("files", &["."], root).unwrap();
    for path in ["fifo", "socket", "zero", "."] {
        let refused = call(&server, "read", json!({"path": path})).unwrap_err();
        let expected = if root.join(path).exists() { "is not a file" } else { "there is no" };
        assert!(refused.contains(expected), "{path}: {refused}");
    }
    assert_eq!(call(&server, "search", json!({"pattern": "."})).unwrap(), "a.txt:1: one");
    assert!(call(&server, "search", json!({"pattern": ".", "path": "fifo"})).is_err());
    assert!(call(&server, "list", json!({})).unwrap().contains("fifo"));
}

#[test]
fn builtin_names_and_arguments_are_checked() {
    let base = std::env::temp_dir();
    let refused = |name: &str, args: &[&str]| parse(name, args, &base).err().expect("is refused");
    assert!(refused("tim", &[]).contains("did you mean `time`?"));
    for name in BUILTINS {
        if let Err(why) = parse(name, &[], &base) {
            assert!(!why.starts_with("no built-in server"), "the configuration allows `{name}`: {why}");
        }
    }
    assert!(refused("calc", &["x"]).contains("takes no argument `x`"));
    assert!(refused("files", &["no/such"]).contains("cannot open the folder"));
    for (args, message) in [
        (&[][..], "name a search engine, such as `args = [\"wikipedia\"]`; there are serper, searxng, "),
        (&["bing"], "there is no search engine `bing`"),
        (&["serper"], "serper needs a key: give it as key=${SERPER_API_KEY}"),
        (&["serper", "key="], "the setting `key` is empty"),
        (&["serper", "key=a\nb"], "the setting `key` contains characters that a key cannot have"),
        (&["searxng"], "searxng is not a public service: give the address of your server as url=..."),
        (&["searxng", "url=ftp://a.b"], "the setting `url` is not an http:// or https:// address"),
        (
            &["wikipedia", "exclud=x"],
            "there is no setting `exclud`, did you mean `exclude`? There are: key, url",
        ),
        (&["wikipedia", "timeout=5"], "the setting `timeout` is not a duration such as 20s"),
        (&["wikipedia", "url=http://a", "url=http://b"], "the setting `url` is given twice"),
        (&["wikipedia", "exclude"], "a setting has no value: write name=value"),
    ] {
        let why = refused("search", args);
        assert!(why.starts_with(message), "{why}");
    }
}

#[test]
fn builtin_schemas_have_the_words_that_every_client_reads() {
    fn check(schema: &Value, of: &str) {
        let Value::Object(schema) = schema else { panic!("{of}: {schema}") };
        let known = [
            "type",
            "description",
            "default",
            "enum",
            "minimum",
            "maximum",
            "items",
            "properties",
            "required",
        ];
        for (key, value) in schema {
            assert!(known.contains(&&**key) && !value.is_null(), "{of}: {key}: {value}");
        }
        assert!(schema["type"].is_string(), "{of}: {schema:?}");
        if let Some(items) = schema.get("items") {
            check(items, of);
        }
        let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        for (name, property) in properties {
            check(property, &format!("{of}.{name}"));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().to_str().unwrap();
    for (name, args) in [
        ("time", vec![]),
        ("calc", vec![]),
        ("files", vec![shared]),
        ("search", vec!["wikipedia"]),
        ("fetch", vec![]),
    ] {
        let Ok(server) = parse(name, &args, folder.path()) else { panic!("{name}") };
        for tool in server.tools() {
            check(&Value::Object((*tool.input_schema).clone()), &format!("{name}.{}", tool.name));
        }
    }
}

#[test]
fn unknown_arguments_are_refused_and_empty_ones_are_none() {
    let server = Builtin::Time;
    assert!(call(&server, "now", json!({"time_zone": null})).is_ok());
    let why = call(&server, "now", json!({"zone": "UTC"})).unwrap_err();
    assert!(why.contains("unknown field `zone`"), "{why}");
}

#[tokio::test]
async fn an_in_memory_client_is_served() {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let serving = Builtin::Calc(calc::Calc::default()).serve(theirs);
    let asking = async {
        let client = ().serve(ours).await.unwrap();
        let mut call = CallToolRequestParams::new("evaluate");
        call.arguments = json!({"expression": "6 * 7"}).as_object().cloned();
        let result = client.call_tool(call).await.unwrap();
        assert_eq!(serde_json::to_value(&result.content).unwrap()[0]["text"], "42");
        client.cancel().await.unwrap();
    };
    tokio::join!(serving, asking);
}
