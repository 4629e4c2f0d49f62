//! From the write of a rule until every proxy has acknowledged it, compared with as many SDKs.
//!
//! Both follow one control plane, whose list of clients is read until it shows both complete.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use damper_proto::v1::fleet_client::FleetClient;
use damper_proto::v1::rules_client::RulesClient;
use damper_proto::v1::{self, Client, Via};
use damper_sdk::Damper;
use tonic::transport::Channel;

use super::passages::Proxy;
use crate::calls::{self, CALLEE};
use crate::figure::{Figure, Target};
use crate::fleet::{Server, put_request};
use crate::patience::{PATIENCE, within};
use crate::rows::Size;
use crate::rows::change::REST;

const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Proxies and SDKs, as many of each, and the control plane that they follow.
struct Followers {
    server: Server,
    rules: RulesClient<Channel>,
    fleet: FleetClient<Channel>,
    each: usize,
    _proxies: Vec<Proxy>,
    _sdks: Vec<Damper>,
}

pub(super) async fn measure(service: &str, size: Size) -> Result<Vec<Figure>> {
    let mut followers = Followers::start(service, size.pick(2, 10, 20)).await?;
    let (mut proxies, mut sdks) = (Vec::new(), Vec::new());
    for _ in 0..size.pick(1, 45, 155) {
        tokio::time::sleep(REST).await;
        let [of_proxies, of_sdks] = followers.change().await?;
        proxies.push(of_proxies);
        sdks.push(of_sdks);
    }
    let what = format!("from a change until {} proxies have acknowledged it", followers.each);
    Ok(vec![Figure::beside(what, "ms", &proxies, "as many SDKs", &sdks).aim(Target::RatioAtMost(1.0))])
}

impl Followers {
    async fn start(service: &str, each: usize) -> Result<Self> {
        let server = calls::control_plane().await?;
        let (mut proxies, mut sdks) = (Vec::new(), Vec::new());
        for _ in 0..each {
            proxies.push(Proxy::damper(server.url(), service).await?);
            sdks.push(calls::service(server.url()).await?);
        }
        let channel = server.door().channel().await?;
        let (rules, fleet) = (RulesClient::new(channel.clone()), FleetClient::new(channel));
        Ok(Self { server, rules, fleet, each, _proxies: proxies, _sdks: sdks })
    }

    /// Returns the milliseconds until all proxies have a change, and until all SDKs have it.
    async fn change(&mut self) -> Result<[f64; 2]> {
        let request = put_request(self.server.door(), CALLEE)?;
        let begun = Instant::now();
        let written = within(PATIENCE, "the write of a rule", self.rules.put_rule(request)).await??;
        let revision = written.into_inner().revision;
        let mut took = [None; 2];
        loop {
            if let [Some(proxies), Some(sdks)] = took {
                return Ok([proxies, sdks]);
            }
            let request = self.server.door().admin(v1::ListClientsRequest::default());
            let listed = within(PATIENCE, "the list of clients", self.fleet.list_clients(request)).await??;
            let clients = listed.into_inner().clients;
            for (took, via) in took.iter_mut().zip([Via::Proxy, Via::Unspecified]) {
                let has_it =
                    |client: &&Client| client.via() == via && client.acknowledged_revision >= revision;
                if took.is_none() && clients.iter().filter(has_it).count() == self.each {
                    *took = Some(begun.elapsed().as_secs_f64() * 1e3);
                }
            }
            ensure!(begun.elapsed() < PATIENCE, "the change does not reach all");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
