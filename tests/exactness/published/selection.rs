//! Dynamo's selection service must choose the server that has the prompt.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use contextpilot_testbed::{Connection, Error, KillOnDrop, Request, Result, Server};
use serde_json::{Value, json};

use crate::indexer::{BLOCK, next_port};
use crate::prompts::text;
use crate::publisher::Publisher;
use crate::slots::contents;
use contextpilot_testbed::try_until;

struct Service {
    _process: KillOnDrop,
    address: SocketAddr,
}

impl Service {
    fn start(python: &Path) -> Result<Self> {
        let port = next_port();
        let child = Command::new(python)
            .args(["-m", "dynamo.select_service", "--port", &port.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let service = Self {
            _process: KillOnDrop(child),
            address,
        };
        try_until("the service listens", || Ok(Connection::open(address).ok()))?;
        Ok(service)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let mut connection = Connection::open(self.address)?;
        connection
            .exchange("POST", path, body.to_string().as_bytes())?
            .json()
    }

    fn add(&self, id: usize, publisher: &Publisher) -> Result<()> {
        let answer = self.post(
            "/workers",
            &json!({
                "worker_id": id, "model_name": "m",
                "endpoint": format!("http://{}", publisher.server.address()),
                "kv_events_endpoint": format!("tcp://127.0.0.1:{}", publisher.events),
                "replay_endpoint": format!("tcp://127.0.0.1:{}", publisher.events + 1),
                "block_size": BLOCK, "total_kv_blocks": 512, "max_num_batched_tokens": 2048,
            }),
        )?;
        if answer["lifecycle"] == "schedulable" {
            Ok(())
        } else {
            Err(Error::new(format!("/workers: {answer}")))
        }
    }
}

/// Twenty prompts are spread over three servers. For each prompt, the service must choose the server
/// that evaluated it.
pub(crate) fn run(python: &Path) -> Result<String> {
    let service = Service::start(python)?;
    let llama = Server::tiny();
    let llama = llama.bare_slots(8).args(["-c", "4096"]);
    let mut publishers = Vec::new();
    for id in 0..3 {
        let publisher = Publisher::start(&llama, next_port(), None)?;
        service.add(id, &publisher)?;
        publishers.push(publisher);
    }
    for seed in 0..20 {
        let publisher = &publishers[seed % 3];
        let slot = (seed / 3) as u32;
        let prompt = Request::completion(text(seed as u64, 100)).slot(slot);
        publisher.server.complete(&prompt)?;
    }
    let mut asked = 0;
    for (id, publisher) in publishers.iter().enumerate() {
        let held = contents(&publisher.server)?;
        let held = held.ok_or_else(|| Error::new("the slots are not told"))?;
        for content in held.iter().filter(|content| content.len() >= BLOCK) {
            let wanted = content.len() / BLOCK * BLOCK;
            let mut last = Value::Null;
            try_until("the service chooses it", || {
                let body = json!({"model_name": "m", "token_ids": content});
                last = service.post("/select", &body)?;
                let right = last["worker_id"] == id && last["overlap"]["gpu"] == wanted;
                Ok(right.then_some(()))
            })
            .map_err(|error| {
                Error::new(format!("server {id}, {wanted} tokens: {error}: {last}"))
            })?;
            asked += 1;
        }
    }
    match asked {
        20 => Ok("20 prompts over three servers".to_owned()),
        _ => Err(Error::new(format!("only {asked} prompts are there"))),
    }
}
