//! Behaviour of the job server, in paused time.

mod deliver;
mod faults;
mod holds;
mod jobs;
mod leases;
mod rig;
