//! Metrics that a process serves to Prometheus, and the judgement of promtool on them.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::{Command, Stdio},
    str::FromStr,
};

use crate::support::program::{code, err};

/// The whole answer of the server at `address`.
pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The address in the line of a command that serves metrics.
pub(crate) fn metrics_address(printed: &str) -> Option<String> {
    let (_, rest) = printed.split_once("http://")?;
    rest.split_once("/metrics").map(|(address, _)| address.to_owned())
}

/// The value of a series, as `name{label="value"}`.
pub(crate) fn value<T: FromStr>(answer: &str, series: &str) -> T {
    let line = answer.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{series}: {answer}"))
}

/// Has promtool judge an answer with metrics.
pub(crate) fn check_with_promtool(answer: &str) {
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert_eq!((code(&output), &*err(&output)), (0, ""), "{body}");
}
