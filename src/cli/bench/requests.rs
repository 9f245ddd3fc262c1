//! Reads HTTP requests for the model servers on the loopback interface that measurements are made with.

use std::io;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::TcpStream,
};

/// The body of the next request; nothing once the caller hung up.
pub(super) async fn request(socket: &mut BufReader<TcpStream>) -> io::Result<Option<Vec<u8>>> {
    let (mut line, mut length) = (String::new(), 0);
    loop {
        line.clear();
        if socket.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = line.split_once(':') else {
            if line.trim().is_empty() {
                break;
            }
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        }
    }
    let mut body = vec![0; length];
    socket.read_exact(&mut body).await?;
    Ok(Some(body))
}
