//! One call in virtual time; a script sets how long each attempt takes and how it ends.

use super::*;
use crate::rules::kill::TimedKill;

/// How an attempt ends: milliseconds and event.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goes {
    Ends(u64, Verdict),
    /// Its response begins then and never ends.
    Begins(u64),
    Never,
}

/// Events, by milliseconds since the call began.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    pub(super) sends: Vec<(u64, AttemptKind)>,
    pub(super) cancelled: Vec<(u64, u32)>,
    pub(super) ended: u64,
    pub(super) finish: Option<Finish>,
    pub(super) flags: Vec<Option<u32>>,
}

impl Timeline {
    pub(super) fn fate(&self) -> &'static str {
        self.finish.unwrap().ending.fate.name()
    }
}

/// From this millisecond on, exactly these kills match the route.
#[derive(Clone, Debug)]
pub(super) struct Thrown {
    pub(super) at: u64,
    pub(super) kills: Vec<TimedKill>,
}

/// When the request is kept, in milliseconds since the call began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// From the start, or never, as configured at the start.
    AsItStarts,
    Kept(u64),
    /// It is found then that it is not kept.
    NotKept(u64),
    /// It never ends.
    Endless,
}

pub(super) fn play(route: &Route, start: CallStart, script: &[Goes]) -> Timeline {
    play_while(route, start, script, &[])
}

/// Plays a script with kills that start and end. As a driver does, it requests the next step after a kill
/// only if nothing is in flight.
pub(super) fn play_while(route: &Route, start: CallStart, script: &[Goes], thrown: &[Thrown]) -> Timeline {
    play_request(route, start, script, thrown, Request::AsItStarts)
}

/// As [`play_while`], with a request that arrives during the call.
pub(super) fn play_request(
    route: &Route,
    start: CallStart,
    script: &[Goes],
    thrown: &[Thrown],
    request: Request,
) -> Timeline {
    let mut thrown = thrown.iter().peekable();
    while let Some(now) = thrown.next_if(|thrown| thrown.at == 0) {
        route.switch().obey(&now.kills);
    }
    let mut call = Call::begin(route, start);
    let mut arrives = match request {
        Request::Kept(at) | Request::NotKept(at) => Some(start.now + ms(at)),
        Request::AsItStarts | Request::Endless => None,
    };
    if request != Request::AsItStarts {
        call.await_request();
    }
    let mut now = start.now;
    let mut timeline = Timeline::default();
    // Attempts in flight, with the times of their events.
    let mut pending: Vec<(Time, u32, Goes)> = Vec::new();
    for _ in 0..5_000 {
        let ms_now = now.since(start.now).as_millis() as u64;
        match call.next_step(route, now) {
            Step::Send(send) => {
                let goes = script.get(timeline.sends.len()).copied().unwrap_or(Goes::Never);
                timeline.sends.push((ms_now, send.kind));
                timeline.flags.push(send.flag);
                let then = match goes {
                    Goes::Ends(after, _) | Goes::Begins(after) => now + ms(after),
                    Goes::Never => Time::from_micros(u64::MAX),
                };
                pending.push((then, send.attempt, goes));
            }
            Step::Cancel { attempt } => {
                pending.retain(|(_, of, _)| *of != attempt);
                timeline.cancelled.push((ms_now, attempt));
                call.attempt_timed_out(route, attempt, now, 0);
            }
            Step::Finish(finish) => {
                timeline.cancelled.extend(pending.iter().map(|(_, attempt, _)| (ms_now, *attempt)));
                timeline.ended = ms_now;
                timeline.finish = Some(finish);
                return timeline;
            }
            Step::Wait { until } => {
                let next = pending.iter().map(|(then, ..)| *then).min();
                let next = [until, next, arrives].into_iter().flatten().min().expect("something happens");
                let mut is_asked = false;
                while let Some(thrown) =
                    thrown.next_if(|thrown| !is_asked && start.now + ms(thrown.at) <= next)
                {
                    route.switch().obey(&thrown.kills);
                    now = start.now + ms(thrown.at);
                    is_asked = call.is_between_attempts();
                }
                if is_asked {
                    continue;
                }
                now = next;
                if arrives == Some(next) {
                    arrives = None;
                    match request {
                        Request::Kept(_) => call.request_kept(route, now),
                        _ => call.request_not_kept(),
                    }
                    continue;
                }
                assert!(now < Time::from_micros(u64::MAX), "the call never ends: {timeline:?}");
                happen(&mut call, route, &mut pending, now, &mut timeline);
            }
        }
    }
    panic!("the call does not end: {timeline:?}");
}

/// Applies one due event.
fn happen(
    call: &mut Call,
    route: &Route,
    pending: &mut Vec<(Time, u32, Goes)>,
    now: Time,
    to: &mut Timeline,
) {
    let Some(index) = pending.iter().position(|(then, ..)| *then <= now) else { return };
    let (_, attempt, goes) = pending.remove(index);
    match goes {
        Goes::Ends(_, verdict) => call.attempt_ended(route, attempt, verdict, now, 0),
        Goes::Begins(_) => {
            call.attempt_committed(route, attempt, || now);
            let ms_now = now.since(CALLS_BEGIN).as_millis() as u64;
            to.cancelled.extend(pending.drain(..).map(|(_, loser, _)| (ms_now, loser)));
            pending.push((now + ms(10), attempt, Goes::Ends(10, Verdict::Success)));
        }
        Goes::Never => unreachable!("it is never due"),
    }
}
