//! A greeting and its echo: that a connection works.

use std::io::{ErrorKind, Result};

use kcpx::KcpStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const GREETING: [u8; 64] = [7; 64];

/// Client: sends the greeting and reads its echo.
pub(crate) async fn greet(stream: &mut KcpStream) -> Result<()> {
    stream.write_all(&GREETING).await?;
    let mut echo = [0; GREETING.len()];
    stream.read_exact(&mut echo).await?;
    Ok(())
}

/// Server: sends back the next chunk. An error at the end of the stream too.
pub(crate) async fn echo(stream: &mut KcpStream) -> Result<()> {
    let chunk = stream.read_chunk().await?;
    if chunk.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    stream.write_all(&chunk).await
}
