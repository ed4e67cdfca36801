//! The words of messages that depend on the front end.
//!
//! The operator of a group of block devices knows neither a server nor its variables.

use crate::api::{Beginning, FrontEnd};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Terms {
    /// What a member keeps.
    pub(crate) data: &'static str,
    /// The process of a member.
    pub(crate) process: &'static str,
    /// The entries that clients wait for.
    pub(crate) entries: &'static str,
    /// The same after a number.
    pub(crate) counted: &'static str,
    /// The end of a sentence that tells an operator how to use the entries in a rescue file.
    pub(crate) rescue: &'static str,
    /// How a member that gives up its log for a branch gets the branch's data: a predicate.
    pub(crate) takes_branch: &'static str,
    /// The option that founds a cluster.
    pub(crate) new: &'static str,
    /// The option with the addresses of members.
    pub(crate) addresses: &'static str,
    /// The option with the member's name.
    pub(crate) name: &'static str,
    /// How clients of other members notice that only the leader takes writes.
    pub(crate) elsewhere: &'static str,
    /// How options are changed.
    set: fn(&str) -> String,
}

static DATABASE: Terms = Terms {
    data: "database",
    process: "server",
    entries: "transactions",
    counted: "transactions",
    rescue: "look at them with lockstep log --rescue, enter again what is to count, and move the files away",
    takes_branch: "takes that branch's state",
    new: "--wsrep-new-cluster",
    addresses: "wsrep_cluster_address",
    name: "wsrep_node_name",
    elsewhere: "clients that write elsewhere get error 1180 until they connect to it",
    set: |settings| format!("SET GLOBAL wsrep_provider_options = '{settings}'"),
};

static DEVICE: Terms = Terms {
    data: "device",
    process: "process",
    entries: "writes",
    counted: "entries of the device",
    rescue: "lockstep log --rescue lists their ranges. The device goes on without them: move the files away",
    takes_branch: "takes that branch's device once it is started with --resync",
    new: "--new",
    addresses: "--address",
    name: "--name",
    elsewhere: "an attachment to another member ends with an error, unless leadership comes back soon. To attach \
                there, run `lockstep block promote` on it",
    set: |settings| format!("start the member with -o '{settings}'"),
};

/// A group of readers, without a database: the members of `lockstep binlog ingest`.
static COPY: Terms = Terms {
    data: "copy",
    process: "process",
    entries: "parts of the binlog",
    counted: "parts of the binlog",
    rescue: "lockstep log --rescue lists them. The group goes on without them: move the files away",
    takes_branch: "takes that branch's copy once it is started with an empty directory",
    new: "--new-cluster",
    addresses: "--address",
    name: "--name",
    elsewhere: "no client writes to a member of this group",
    set: |settings| format!("start the member with -o '{settings}'"),
};

impl Terms {
    /// The words for this front end.
    pub(crate) fn of(front_end: FrontEnd) -> &'static Terms {
        match front_end {
            FrontEnd::Device => &DEVICE,
            // Such readers have a group of their own: nobody else founds it.
            FrontEnd::Reader { begins: Beginning::Earliest, .. } => &COPY,
            FrontEnd::Database | FrontEnd::Reader { .. } | FrontEnd::Nothing => &DATABASE,
        }
    }

    /// How an operator sets these options: the end of a sentence.
    pub(crate) fn set(&self, settings: &str) -> String {
        (self.set)(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_outside_databases_name_nothing_of_a_database() {
        let copy = FrontEnd::Reader { begins: Beginning::Earliest, prompt: false };
        for front_end in [FrontEnd::Device, copy] {
            let Terms {
                data,
                process,
                entries,
                counted,
                rescue,
                takes_branch,
                new,
                addresses,
                name,
                elsewhere,
                set,
            } = Terms::of(front_end);
            let words =
                [data, process, entries, counted, rescue, takes_branch, new, addresses, name, elsewhere];
            let all = format!("{} {}", words.map(|word| *word).join(" "), set("x=1"));
            for word in ["database", "server", "transaction", "wsrep", "1180", "SET GLOBAL"] {
                assert!(!all.contains(word), "{word}: {all}");
            }
        }
        assert_eq!(Terms::of(FrontEnd::Database).set("x=1"), "SET GLOBAL wsrep_provider_options = 'x=1'");
        let serves = FrontEnd::Reader { begins: Beginning::MultipleOf(64), prompt: true };
        assert_eq!(Terms::of(serves).new, "--wsrep-new-cluster", "its cluster has databases");
    }
}
