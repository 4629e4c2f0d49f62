#![no_main]
#![allow(missing_docs, reason = "the library documents the target")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| damper_fuzz::proxy_keys::run(data));
