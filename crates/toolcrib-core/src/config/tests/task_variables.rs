//! `${task}` and the like: where they can be, and what is refused.

use super::parse;
use crate::config::{Config, TaskValues};

fn server(config: &Config) -> Result<crate::ServerConfig, String> {
    config.servers[0].server.clone().map_err(|error| error.to_string())
}

#[test]
fn variables_of_a_task_are_put_in_for_each_task() {
    let text = "[servers.a]\ncommand = 'x'\nscope = 'task'\nargs = ['--root=${task_dir}/in', '$${task}']\n\
        cwd = '${run_dir}/${task}'\nenv = { T = '${task}', R = 'run ${run}' }\n\
        sandbox = { read = ['data/${task}'], write = ['${task_dir}/out'] }";
    let server = server(&parse(text).unwrap()).unwrap();
    assert!(server.varies_by_task());
    let crate::Endpoint::Stdio(child) =
        server.of_task(&TaskValues::new("t1", "/r/7/t1", "7", "/r/7")).endpoint
    else {
        unreachable!("made as a command")
    };
    assert_eq!(child.args, ["--root=/r/7/t1/in", "${task}"]);
    assert_eq!(child.cwd.to_str(), Some("/r/7/t1"));
    assert_eq!([&child.env["T"], &child.env["R"]], ["t1", "run 7"]);
    let walls = child.sandbox.unwrap();
    assert_eq!(walls.write, [std::path::Path::new("/r/7/t1/out")]);
    assert!(walls.read[0].ends_with("data/t1"), "{:?}", walls.read);
}

#[test]
fn variables_of_a_task_are_refused_where_there_is_none() {
    let scope = "scope = 'task'";
    for (scope, rest, expected, help) in [
        (
            "",
            "args = ['${task}']",
            "`${task}` is not known here: it differs from task to task",
            "add `scope = \"task\"`",
        ),
        (
            "scope = 'client'",
            "cwd = '${run_dir}'",
            "`${run_dir}` is not known here",
            "add `scope = \"task\"`",
        ),
        (scope, "env_file = '${task_dir}/.env'", "`${task_dir}` is not known here", "it can be in `args`"),
        (
            scope,
            "spares = 1\nargs = ['${run}']",
            "cannot be started before its task is known",
            "remove `spares`",
        ),
        (scope, "sandbox.write = ['/tmp/${task}']", "must begin with ${task_dir}", "write ${task_dir}"),
        (scope, "sandbox.write = ['${run_dir}']", "must begin with ${task_dir}", "write ${task_dir}"),
        (scope, "sandbox.write = ['${task_dir}/..']", "must begin with ${task_dir}", "write ${task_dir}"),
    ] {
        let config = parse(&format!("[servers.a]\ncommand = 'x'\n{scope}\n{rest}")).unwrap();
        let error = config.servers[0].server.clone().unwrap_err();
        assert!(error.to_string().contains(expected), "{rest}: {error}");
        assert!(error.help().unwrap_or_default().contains(help), "{rest}: {:?}", error.help());
    }
}

#[test]
fn a_path_below_the_folder_of_a_task_is_named_as_written() {
    let text = "[servers.a]\ncommand = 'x'\nscope = 'task'\nsandbox = { read = ['${task_dir}/a'], write = ['${task_dir}'] }";
    let error = server(&parse(text).unwrap()).unwrap_err();
    assert!(error.contains("names ${task_dir}/a, which lies below ${task_dir} of `write`"), "{error}");
}
