use super::*;

#[test]
fn ids_become_numbers_and_texts_are_left_out() {
    let mut request: Evaluated = serde_json::from_value(json!({
        "number": 7, "id": "secret-1", "at": "2026-11-21T19:30:25.790Z", "slot": 0,
        "evaluation": {
            "diverged": {
                "at": 5, "request": "secret-2", "text": { "before": "a", "old": "b", "new": "c" },
            },
            "lost": { "when": "2026-11-21T19:30:25.790Z", "reason": "overwritten", "by": "secret-1" },
        },
    }))
    .unwrap();
    let kept = request.clone();
    Names::new(false).of_request(&mut request);
    let text = serde_json::to_string(&request).unwrap();
    assert!(!text.contains("secret"), "{text}");
    assert_eq!(request.id.as_deref(), Some("request-1"));
    let lost = request.evaluation.lost.unwrap();
    assert_eq!(lost.by, Some(RequestName::Id("request-1".to_owned())));
    let diverged = request.evaluation.diverged.unwrap();
    assert_eq!(
        diverged.request,
        Some(RequestName::Id("request-2".to_owned()))
    );
    assert_eq!(diverged.text, None);

    let mut named = kept.clone();
    Names::new(true).of_request(&mut named);
    assert_eq!(named.id, kept.id);
    assert_eq!(
        named.evaluation.diverged.unwrap().text,
        None,
        "no text, ids or not"
    );
}
