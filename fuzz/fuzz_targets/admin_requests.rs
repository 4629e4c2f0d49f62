#![no_main]
#![allow(missing_docs, reason = "the library says what the target checks")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| damper_fuzz::admin_requests::run(data));
