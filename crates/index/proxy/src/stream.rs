//! A client's connection, whose progress is noted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::places::Progress;

/// Bytes that are read from a connection at a time, and those that wait there to be written. Every connection may hold
/// twice as many in each direction, so this bounds what all of them hold that no [`Room`](crate::Room) counts. The head of
/// a request cannot be longer. (hyper's own default is 400 KiB.)
pub(crate) const BUFFER: usize = 64 << 10;

pub(crate) struct Watched {
    stream: TokioIo<TcpStream>,
    progress: Arc<Progress>,
}

impl Watched {
    pub(crate) fn new(stream: TcpStream, progress: Arc<Progress>) -> Self {
        let stream = TokioIo::new(stream);
        Self { stream, progress }
    }

    fn wrote<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.progress.reads(polled.is_ready());
        polled
    }
}

impl Read for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_ready() {
            self.progress.arrived();
        }
        polled
    }
}

impl Write for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() {
            self.progress.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.wrote(polled)
    }
}
