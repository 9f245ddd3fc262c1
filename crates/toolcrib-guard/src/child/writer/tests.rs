//! Tests of which bytes are taken back from a pipe, and which are not.

use std::io::Read;

use super::*;
use crate::linux::MAX_RETURNED;

fn pipe() -> (LineWriter, io::PipeReader) {
    let (reader, sender) = io::pipe().unwrap();
    (LineWriter::pipe(pipe::Sender::from_owned_fd(sender.into()).unwrap()), reader)
}

/// Writes lines that begin with their numbers, until the pipe is full.
async fn write(writer: &LineWriter, lines: impl IntoIterator<Item = (u32, usize)>) -> Vec<LinePosition> {
    let mut positions = Vec::new();
    for (number, bytes) in lines {
        let position = LinePosition::default();
        let line = format!("{{{number}:{}\n", "x".repeat(bytes));
        let _ = timeout(Duration::from_millis(50), writer.write_from(line.as_bytes(), 0, &position)).await;
        positions.push(position);
    }
    positions
}

fn left(writer: &LineWriter, positions: &[LinePosition]) -> Vec<bool> {
    let head = |number| format!("{{{number}:").into_bytes();
    positions
        .iter()
        .zip(0..)
        .map(|(position, number)| writer.may_have_left(position, &head(number)))
        .collect()
}

#[tokio::test]
async fn unread_lines_are_taken_back_one_by_one() {
    let (writer, mut reader) = pipe();
    let positions = write(&writer, [(0, 10), (1, 10), (2, 10), (3, 100_000), (4, 10)]).await;
    assert_eq!(left(&writer, &positions), [true, true, true, true, false], "the last one was not written");
    // All of the first line, and one byte of the second.
    reader.read_exact(&mut [0; 15]).unwrap();
    let unread = writer.unread();
    assert!(unread.is_some_and(|bytes| bytes > 10));
    writer.seal().await;
    assert_eq!(writer.unread(), unread, "what is taken back was not read");
    assert_eq!(left(&writer, &positions), [true, true, false, false, false]);
    assert!(!writer.write_now(b"{9:\n", &LinePosition::default()));
    writer.close();
    let mut rest = Vec::new();
    assert_eq!(reader.read_to_end(&mut rest).unwrap(), 0, "nobody can read it any more");
}

#[tokio::test]
async fn unread_lines_are_taken_back_without_a_reader() {
    let (writer, reader) = pipe();
    let positions = write(&writer, [(0, 10), (1, 10)]).await;
    drop(reader);
    let position = LinePosition::default();
    assert!(writer.write_from(b"{2:\n", 0, &position).await.is_err(), "a broken pipe");
    assert_eq!(left(&writer, &positions), [false, false]);
    assert!(!writer.may_have_left(&position, b"{2:"));
}

#[tokio::test]
async fn lines_of_other_writers_are_not_taken_for_ours() {
    use std::os::fd::AsRawFd;
    let (writer, mut reader) = pipe();
    let positions = write(&writer, [(0, 10), (1, 10)]).await;
    reader.read_exact(&mut [0; 28]).unwrap();
    let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
    std::fs::write(path, b"{1:forged\n").unwrap();
    writer.seal().await;
    assert_eq!(left(&writer, &positions), [true, true]);
}

#[toolcrib_testing::requires(large_pipes)]
#[tokio::test]
async fn taking_back_from_an_endless_pipe_stops() {
    let (writer, reader) = pipe();
    let positions = write(&writer, [(0, 10)]).await;
    rustix::pipe::fcntl_setpipe_size(&reader, 2 * MAX_RETURNED).unwrap();
    let mut other = std::fs::OpenOptions::new();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    let mut other = other.write(true).open(path).unwrap();
    io::Write::write_all(&mut other, &vec![b'x'; MAX_RETURNED + 1]).unwrap();
    writer.seal().await;
    assert_eq!(left(&writer, &positions), [true]);
}
