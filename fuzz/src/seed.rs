//! Where fuzzing begins for what is written in a form: rules and guards that the engine accepts, of every kind.

use arbitrary::{Result, Unstructured};
use damper_core::Guard;
use damper_proto::manifest::Manifest;
use damper_proto::v1;

use crate::any;

const COUNT: usize = 40;
/// More bytes than any rule or guard is made of.
const BYTES: usize = 512;

/// The same each time.
pub(crate) fn manifests() -> Vec<Manifest> {
    let mut rng = fastrand::Rng::with_seed(3);
    let any = std::iter::repeat_with(move || {
        let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(BYTES).collect();
        manifest(&mut Unstructured::new(&bytes)).expect("there are bytes enough")
    });
    any.take(COUNT).collect()
}

fn manifest(u: &mut Unstructured<'_>) -> Result<Manifest> {
    Ok(if u.ratio(1, 3)? {
        let guard: Guard = any::guard(u, "stock")?;
        v1::Guard::from(&guard).into()
    } else {
        v1::Rule::from(&any::rule(u, "stock", "a.B/C")?).into()
    })
}
