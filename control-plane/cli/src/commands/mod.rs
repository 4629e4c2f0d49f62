//! One command, one file. Each reads its arguments, asks the server and shows the answer.

pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod chain;
pub(crate) mod clients;
pub(crate) mod completion;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod failures;
pub(crate) mod guards;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod kill;
pub(crate) mod kills;
pub(crate) mod lint;
pub(crate) mod reference;
pub(crate) mod replicas;
pub(crate) mod rollback;
pub(crate) mod routes;
pub(crate) mod rules;
pub(crate) mod serve;
pub(crate) mod stats;
pub(crate) mod token;
pub(crate) mod unkill;
pub(crate) mod whoami;
