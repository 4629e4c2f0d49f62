//! Long responses end without an error only after everything was sent, however slowly they are read.

use damper_proto::v1;
use damper_proto::v1::history_client::HistoryClient;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use crate::harness::{Running, header, key, put_change, rule, soon, start_with};

/// Far more bytes than the buffers on the way to a reader hold.
const RULES: usize = 6000;

async fn fill(server: &Running) {
    let long = |n: usize| {
        let name = |first: char| format!("{first}{n:0>254}");
        let key = v1::Pattern { caller_cluster: name('c'), ..key(&name('a'), &name('b'), "*") };
        v1::Rule { owner: name('o'), ..rule(key, 2) }
    };
    let options = v1::WriteOptions::default();
    let set: Vec<_> =
        std::iter::once(header(options)).chain((0..RULES).map(|n| put_change(long(n)))).collect();
    soon(server.rules().apply_rules(tokio_stream::iter(set))).await.unwrap();
}

/// Reads to the end and returns its status.
async fn end<T>(mut answer: Streaming<T>) -> Result<(), Status> {
    while soon(answer.message()).await?.is_some() {}
    Ok(())
}

#[tokio::test]
async fn interrupted_export_or_audit_log_ends_with_an_error() {
    let mut server = start_with(|settings| settings.drain = std::time::Duration::from_secs(20)).await;
    fill(&server).await;
    let narrow = Endpoint::from_shared(server.url.clone()).unwrap().initial_stream_window_size(65_535);
    let mut history = HistoryClient::new(narrow.connect_lazy());
    let mut export = soon(history.export(v1::ExportRequest::default())).await.unwrap().into_inner();
    let first = soon(export.message()).await.unwrap().unwrap();
    assert_eq!(first.total, RULES as u64);
    let audit = soon(history.export_audit(v1::ExportAuditRequest::default())).await.unwrap().into_inner();
    let watch = soon(server.fleet().watch(v1::WatchRequest::default())).await.unwrap().into_inner();
    server.tell_to_stop();
    // It ends once the server is about to stop; the others have not been read further yet.
    assert_eq!(end(watch).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(end(export).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(end(audit).await.unwrap_err().code(), Code::Unavailable);
    server.stop().await;
}

/// Unread responses keep the parts of the store that they have read.
#[tokio::test]
async fn audit_logs_are_counted_as_exports() {
    let server = start_with(|_| {}).await;
    fill(&server).await;
    let narrow = Endpoint::from_shared(server.url.clone()).unwrap().initial_stream_window_size(65_535);
    let mut history = HistoryClient::new(narrow.connect_lazy());
    let mut unread = Vec::new();
    for _ in 0..2 {
        let opened = soon(history.export_audit(v1::ExportAuditRequest::default())).await;
        unread.push(opened.unwrap().into_inner());
    }
    let refused = soon(history.export_audit(v1::ExportAuditRequest::default())).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(refused.metadata().get("damper-limit").unwrap(), "exports");
    end(unread.remove(0)).await.unwrap();
    soon(history.export(v1::ExportRequest::default())).await.unwrap();
}

/// It keeps the values that were changed since.
#[tokio::test]
async fn one_earlier_revision_is_exported_at_a_time() {
    let server = start_with(|_| {}).await;
    fill(&server).await;
    server.put(rule(key("shop", "stock", "s.S/M"), 2)).await;
    let narrow = Endpoint::from_shared(server.url.clone()).unwrap().initial_stream_window_size(65_535);
    let mut history = HistoryClient::new(narrow.connect_lazy());
    let earlier = v1::ExportRequest { revision: Some(1) };
    let first = soon(history.export(earlier)).await.unwrap().into_inner();
    let refused = soon(history.export(earlier)).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert_eq!(refused.metadata().get("damper-limit").unwrap(), "exports");
    let newest = soon(history.export(v1::ExportRequest::default())).await.unwrap().into_inner();
    end(newest).await.unwrap();
    end(first).await.unwrap();
    soon(history.export(earlier)).await.unwrap();
    server.stop().await;
}
