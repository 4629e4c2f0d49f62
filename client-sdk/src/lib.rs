//! Damper inside a service: tower layers that carry out its retry policies.

mod client;
mod clock;
mod routes;
