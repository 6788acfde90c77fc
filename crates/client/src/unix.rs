//! HTTP over a unix socket, as a transport of ureq's.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Connects to one socket, whatever the URL says.
#[derive(Debug)]
pub(crate) struct UnixConnector(pub(crate) PathBuf);

impl Connector for UnixConnector {
    type Out = UnixTransport;

    fn connect(
        &self,
        details: &ConnectionDetails,
        _: Option<()>,
    ) -> Result<Option<UnixTransport>, ureq::Error> {
        let config = details.config;
        Ok(Some(UnixTransport {
            stream: UnixStream::connect(&self.0)?,
            buffers: LazyBuffers::new(config.input_buffer_size(), config.output_buffer_size()),
        }))
    }
}

#[derive(Debug)]
pub(crate) struct UnixTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        let timeout = timeout.for_write();
        self.stream.set_write_timeout(limit(&timeout))?;
        let output = &self.buffers.output()[..amount];
        self.stream
            .write_all(output)
            .map_err(|error| told(error, &timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        let timeout = timeout.for_read();
        let deadline = limit(&timeout).map(|limit| Instant::now() + limit);
        loop {
            // Zero would mean none, and is refused.
            let left = deadline.map(|deadline| {
                deadline
                    .saturating_duration_since(Instant::now())
                    .max(Duration::from_millis(1))
            });
            self.stream.set_read_timeout(left)?;
            match self.stream.read(self.buffers.input_append_buf()) {
                Ok(amount) => {
                    self.buffers.input_appended(amount);
                    return Ok(amount > 0);
                }
                // A signal, which with a limit on the socket no system call survives.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(told(e, &timeout)),
            }
        }
    }

    fn is_open(&mut self) -> bool {
        let quiet = self.stream.set_nonblocking(true).and_then(|()| {
            let read = self.stream.read(&mut [0]);
            self.stream.set_nonblocking(false)?;
            read
        });
        // Anything else: closed, or bytes that nobody asked for.
        matches!(quiet, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
    }
}

fn limit(timeout: &NextTimeout) -> Option<Duration> {
    timeout.not_zero().map(|duration| *duration)
}

fn told(error: io::Error, timeout: &NextTimeout) -> ureq::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ureq::Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
