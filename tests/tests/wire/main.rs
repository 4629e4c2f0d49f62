//! gRPC on the wire: the SDK as an application uses it, against a scripted HTTP/2 peer over real sockets.
//!
//! Every case says what the peer does, what it must have seen, what the application must have got, and the
//! one fate that must have been counted. The rules come from a real control plane.
//!
//! Not here: memory over a long time (`wire_memory.rs`, which counts allocations of its whole process), and the
//! engine's decisions in virtual time (the SDK's own scenarios).

mod answers;
mod anything;
mod bodies;
mod cancelled;
mod deadlines;
mod hedging;
mod hold_unary;
mod hostile;
mod metadata;
mod modes;
mod pushback;
mod resets;
mod stream_limits;
mod streams;
mod world;
