//! `--allow-host`, for all that listens and may be asked by web pages.

use clap::Args;
use contextpilot_settings::AllowedHosts;

/// The hosts by which clients may name it.
#[derive(Args, Clone, Default)]
pub(super) struct Hosts {
    /// Answer requests to this name as well, such as the one that other machines or
    /// containers use (can be repeated). Others than localhost and addresses are
    /// refused: a web page could have made them resolve to this machine
    #[arg(long = "allow-host", value_name = "NAME")]
    names: Vec<String>,
}

impl Hosts {
    pub(super) fn allowed(&self) -> Result<AllowedHosts, String> {
        AllowedHosts::new(&self.names).map_err(|why| format!("--allow-host: {why}"))
    }
}
