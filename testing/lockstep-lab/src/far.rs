//! Servers near and far: what the experiments over a long line have in common.

use std::path::Path;
use std::time::Duration;

use lockstep_local::{Result, Server};

use crate::cluster::{Cluster, ClusterSpec, Place};
use crate::wan::Wan;

/// The zone of those who write, and the far one.
pub(crate) const NEAR: usize = 0;
pub(crate) const FAR: usize = 1;
/// How often a server is looked at that is waited for.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// What Galera's makers advise for long lines: with its defaults transactions of many clients wait for each other.
pub(crate) const GALERA_FAR: [(&str, &str); 6] = [
    ("gcs.fc_factor", "0.95"),
    ("gcs.fc_limit", "1024"),
    ("evs.send_window", "512"),
    ("evs.user_send_window", "256"),
    ("evs.suspect_timeout", "PT30S"),
    ("evs.inactive_timeout", "PT60S"),
];

/// Starts a cluster with members at these places, each a zone and a number in it.
pub(crate) fn start_cluster(
    places: &[(usize, usize)],
    provider: &Path,
    options: &[(&str, &str)],
    extra: Vec<String>,
    wan: &Wan,
) -> Result<Cluster> {
    let mut spec = ClusterSpec::new(provider);
    spec.places = places
        .iter()
        .map(|(zone, at)| Place { host: wan.host(*zone, *at), namespace: wan.namespace(*zone, *at) })
        .collect();
    spec.members = places.len();
    spec.extra = extra;
    spec.provider_options = options.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    let mut cluster = Cluster::prepare(&spec)?;
    for (server, (zone, _)) in cluster.servers.iter_mut().zip(places) {
        // A name that both providers know.
        server.wsrep_mut()?.provider_options.push(("gmcast.segment".into(), zone.to_string()));
    }
    cluster.bootstrap()?;
    Ok(cluster)
}

/// Starts one server without replication and without a binlog at this place.
pub(crate) fn start_alone((zone, at): (usize, usize), extra: Vec<String>, wan: &Wan) -> Result<Cluster> {
    let mut cluster = Cluster::prepare_alone()?;
    let server = &mut cluster.servers[0];
    server.config.namespace = Some(wan.namespace(zone, at));
    server.config.bind_address = wan.host(zone, at);
    server.config.extra = extra;
    server.start(&[])?;
    Ok(cluster)
}

/// Each server's name and option file; then for each, as `NAME.variables`, its variables while it ran: also those set by
/// statements, derived ones, and the provider's options.
pub(crate) fn configurations(servers: &[Server]) -> Result<Vec<(String, String)>> {
    let options = servers.iter().map(|server| (server.name().to_owned(), server.config.render()));
    Ok(options.chain(variables(servers)?).collect())
}

/// The second half of [`configurations`].
pub(crate) fn variables(servers: &[Server]) -> Result<Vec<(String, String)>> {
    let of = |server: &Server| {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| text.push_str(&format!("{name}={value}\n"));
        line("# network namespace", server.config.namespace.as_deref().unwrap_or("the machine's"));
        if let Some(processor) = server.config.processor {
            line("# processor", &processor.to_string());
        }
        let status = server.query("SHOW SLAVE STATUS")?;
        for (name, value) in status.columns.iter().zip(status.rows.iter().flatten()) {
            line(&format!("# SHOW SLAVE STATUS: {name}"), value.as_deref().unwrap_or_default());
        }
        for row in server.query("SHOW GLOBAL VARIABLES")?.rows {
            if let [Some(name), Some(value)] = &row[..] {
                line(name, value);
            }
        }
        Ok((format!("{}.variables", server.name()), text))
    };
    servers.iter().map(of).collect()
}

/// The server's version, and the provider's where there is one.
pub(crate) fn version(server: &Server) -> Result<String> {
    let mut client = server.client()?;
    let version = client.value("SELECT VERSION()")?;
    Ok(match server.config.wsrep {
        None => version,
        Some(_) => {
            let (vendor, provider) =
                (client.status("wsrep_provider_name")?, client.status("wsrep_provider_version")?);
            format!("{version}, {vendor} {provider}")
        }
    })
}

/// Waits until every server answers `sql` so.
pub(crate) fn wait_for_copies(servers: &[Server], timeout: Duration, sql: &str, due: &str) -> Result<()> {
    servers.iter().try_for_each(|server| {
        let what = format!("does not answer [{sql}] with {due}");
        server.wait_until(timeout, PAUSE, &what, || Ok(server.query(sql)?.value()? == due))
    })
}
