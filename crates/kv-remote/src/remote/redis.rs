//! A Redis.

use std::error::Error;
use std::fmt;
use std::io::{
    self,
    ErrorKind::{TimedOut, WouldBlock},
};
use std::sync::Arc;
use std::time::Duration;

use contextpilot_kv_store::{Fingerprint, Name};
use contextpilot_settings::shown_remote;
use redis::{Client, Connection, ErrorKind, RedisError, RedisResult, cmd, pipe};
use rustls::AlertDescription;

use super::{Holder, Listed, NO_TLS, RemoteError, Trouble, tls_advice};

const PREFIX: &str = "contextpilot:kv:1";
const CONNECT: Duration = Duration::from_secs(2);
/// Until something of an answer comes.
const ANSWER: Duration = Duration::from_secs(30);
/// Until something of a question is taken. What the system takes of a chunk before it waits counts as taken, so of one
/// that nobody takes twice this time passes.
const TAKEN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// It is connected to when something is asked, and again after an error.
pub(super) struct Redis {
    client: Client,
    connection: Option<Connection>,
    shown: String,
}

impl Redis {
    /// Opens nothing.
    ///
    /// # Errors
    /// It is no address of a Redis.
    pub(super) fn new(url: &str) -> Result<Self, RemoteError> {
        let shown = shown_remote(url);
        let no_url = |why: &dyn fmt::Display| RemoteError::address(&shown, why);
        // The client knows one fragment, by which it would trust anybody.
        if url.contains('#') {
            return Err(no_url(&"a # has no meaning in it"));
        }
        let client = Client::open(url).map_err(|error| no_url(&error))?;
        // The client takes what the process has. Only the first call has an effect, and all ask for the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            client,
            connection: None,
            shown,
        })
    }

    fn listed(&mut self, question: &redis::Cmd) -> Result<Vec<Listed>, RemoteError> {
        let members: Vec<(String, f64)> = self.ask(|connection| question.query(connection))?;
        let listed = members.iter().filter_map(|(member, nth)| {
            let (name, size) = member.split_once(':')?;
            Some(Listed {
                name: name.parse().ok()?,
                size: size.parse().ok()?,
                // Exact up to 2⁵³.
                nth: *nth as u64,
            })
        });
        Ok(listed.collect())
    }

    fn ask<T>(
        &mut self,
        question: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, RemoteError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.client).map_err(|error| self.trouble(&error))?,
        };
        match question(&mut connection) {
            Ok(answer) => {
                self.connection = Some(connection);
                Ok(answer)
            }
            // What the connection would say next may belong to the last question: it is not used again.
            Err(error) => Err(self.trouble(&error)),
        }
    }

    fn trouble(&self, error: &RedisError) -> RemoteError {
        let io = io_error(error);
        let tls: Option<&rustls::Error> = io.and_then(|io| io.get_ref()?.downcast_ref());
        let trouble = match error.kind() {
            _ if error.code() == Some("OOM") => Trouble::Full,
            _ if tls.is_some() => Trouble::Refused,
            ErrorKind::Io => Trouble::Away,
            _ => Trouble::Refused,
        };
        let is_late = io.is_some_and(|io| matches!(io.kind(), WouldBlock | TimedOut));
        let what = match is_late {
            true => "no answer in time".to_owned(),
            false => error.to_string(),
        };
        let advice = match tls {
            _ if trouble == Trouble::Full => {
                "; set maxmemory-policy allkeys-lru there, or give it more memory"
            }
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => {
                "; it asks for a certificate of the client, and there is none: set tls-auth-clients no there"
            }
            Some(tls) => tls_advice(tls),
            // A Redis waits for the end of what it takes for a command.
            None if is_late && self.shown.starts_with("rediss:") => NO_TLS,
            None => "",
        };
        RemoteError::new(trouble, format!("{}: {what}{advice}", self.shown))
    }
}

impl Holder for Redis {
    fn shown(&self) -> &str {
        &self.shown
    }

    fn pause(&self) -> Duration {
        PAUSE
    }

    fn longest_retry(&self) -> Duration {
        LONGEST_RETRY
    }

    fn reach(&mut self) -> Result<(), RemoteError> {
        // Whoever may only connect may not ask this.
        self.ask(|connection| cmd("EXISTS").arg(PREFIX).exec(connection))
    }

    fn has(&mut self, of: &Fingerprint, chunks: &[(Name, u64)]) -> Result<Vec<bool>, RemoteError> {
        let mut questions = pipe();
        for (name, size) in chunks {
            questions.cmd("EXISTS").arg(chunk_key(name));
            questions
                .cmd("ZSCORE")
                .arg(model_key(of))
                .arg(member(name, *size));
        }
        let answers: Vec<(bool, Option<f64>)> = self.ask(|connection| {
            connection.send_packed_command(&questions.get_packed_pipeline())?;
            // The client's own way to ask several questions waits for each answer, also after one did not come in time.
            let mut answer = || connection.recv_response()?.extract_error();
            let pairs = chunks.iter().map(|_| {
                let there = redis::from_redis_value(answer()?)?;
                Ok((there, redis::from_redis_value(answer()?)?))
            });
            pairs.collect()
        })?;
        Ok(answers
            .into_iter()
            .map(|(there, listed)| there && listed.is_some())
            .collect())
    }

    fn put(
        &mut self,
        of: &Fingerprint,
        name: &Name,
        size: u64,
        whole: &[u8],
    ) -> Result<(), RemoteError> {
        self.ask(|connection| {
            cmd("SET")
                .arg(chunk_key(name))
                .arg(whole)
                .exec(connection)?;
            let nth: u64 = cmd("INCR")
                .arg(format!("{PREFIX}:sent"))
                .query(connection)?;
            let mut list = cmd("ZADD");
            list.arg(model_key(of)).arg(nth).arg(member(name, size));
            list.exec(connection)
        })
    }

    fn after(
        &mut self,
        of: &Fingerprint,
        nth: u64,
        most: usize,
    ) -> Result<Vec<Listed>, RemoteError> {
        let mut question = cmd("ZRANGE");
        question
            .arg(model_key(of))
            .arg(format!("({nth}"))
            .arg("+inf")
            .arg("BYSCORE");
        question.arg("LIMIT").arg(0).arg(most).arg("WITHSCORES");
        self.listed(&question)
    }

    fn last(&mut self, of: &Fingerprint, most: usize) -> Result<Vec<Listed>, RemoteError> {
        let mut question = cmd("ZRANGE");
        question
            .arg(model_key(of))
            .arg(0)
            .arg(most.saturating_sub(1))
            .arg("REV")
            .arg("WITHSCORES");
        self.listed(&question)
    }

    fn get(&mut self, _: &Fingerprint, name: &Name) -> Result<Option<Vec<u8>>, RemoteError> {
        self.ask(|connection| cmd("GET").arg(chunk_key(name)).query(connection))
    }

    fn forget(&mut self, of: &Fingerprint, listed: &Listed) -> Result<(), RemoteError> {
        let member = member(&listed.name, listed.size);
        self.ask(|connection| {
            cmd("ZREM")
                .arg(model_key(of))
                .arg(member)
                .exec(connection)?;
            cmd("UNLINK").arg(chunk_key(&listed.name)).exec(connection)
        })
    }
}

/// What the system or rustls said, if one of them did.
fn io_error(error: &RedisError) -> Option<&io::Error> {
    let source: &Arc<dyn Error + Send + Sync> = error.source()?.downcast_ref()?;
    source.downcast_ref()
}

fn connect(client: &Client) -> RedisResult<Connection> {
    let connection = client.get_connection_with_timeout(CONNECT)?;
    connection.set_read_timeout(Some(ANSWER))?;
    connection.set_write_timeout(Some(TAKEN))?;
    Ok(connection)
}

fn chunk_key(name: &Name) -> String {
    format!("{PREFIX}:chunk:{name}")
}

fn model_key(of: &Fingerprint) -> String {
    format!("{PREFIX}:model:{of}")
}

fn member(name: &Name, size: u64) -> String {
    format!("{name}:{size}")
}
