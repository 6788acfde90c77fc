// What the control endpoint answers, as far as the page uses it. crates/watch/control has the meaning and the unit of
// each field. `null` means: not known.

export type Name = string | number;

export interface Causes {
    last_token: number;
    new: number;
    evicted: number;
    elsewhere: Elsewhere;
    /** Missing: an older hook counts them as new. */
    repeated?: number;
    no_way_back: number;
    uncached: number;
    moved: number;
    adapter: number;
    not_known: number;
}

export interface Elsewhere {
    pinned: number;
    busy: number;
    similarity: number;
    least_recently_used: number;
    host_rule: number;
}

export interface Sources {
    slot: number;
    host: number;
    checkpoint: number;
    moved: number;
    store: number;
}

/** Bytes of the request's JSON. */
export interface Sections {
    system: number;
    tools: number;
    messages: number;
}

export interface AppliedAdapter {
    id: number | null;
    scale: number;
}

export interface Diverged {
    at: number;
    request: Name | null;
    differing: number;
    same_after: number;
    repeated: number;
    reordered: number;
    inserted: number;
    deleted: number;
    unmatched?: number;
    answer?: boolean;
    earlier_answer?: boolean;
    sent?: boolean;
    block?: number;
    media?: boolean;
    text?: DivergedText;
}

export interface DivergedText {
    before: string;
    old: string;
    new: string;
    /** So many characters of `old` and `new` differ; both prompts have the others. Missing: all. */
    old_differs?: number;
    new_differs?: number;
}

/** What a request is about. Each may be empty. */
export interface Title {
    words: string;
    agent: string;
}

export interface Lost {
    when: string;
    reason: string;
    by: Name | null;
    through?: string;
    tokens: number;
    chosen_by: string | null;
    similarity: number | null;
    kept: number | null;
}

export interface Evaluation {
    prompt_tokens: number;
    reused: number;
    evaluated: number;
    seconds: number | null;
    causes: Partial<Causes>;
    from: Partial<Sources>;
    /** Missing: not known. */
    adapters?: AppliedAdapter[];
    /** Tokens of answers, where the tokenizer has others. Missing: none. */
    kept?: number;
    diverged?: Diverged | null;
    lost?: Lost | null;
    title?: Title;
}

export interface Evaluated {
    number: number;
    id: string | null;
    at: string;
    slot: number;
    time_to_first_token_seconds?: number | null;
    ended?: string | null;
    sections?: Sections;
    evaluation: Evaluation;
    /** Only in reports: tokens of the answer. */
    generated?: number;
}

export interface Place {
    place: string;
    slot?: number;
}

export interface RequestState {
    state: string;
    id: string;
    places?: Place[];
    tokens?: number | null;
    since?: string;
    at?: string;
    reason?: string;
    by?: string | null;
    from?: Place;
    cached_tokens?: number | null;
    evaluation?: Evaluation | null;
    hint?: string;
}

export interface Slot {
    slot: number;
    tokens: number;
    capacity: number | null;
    bytes: number | null;
    busy: boolean;
    requests: string[];
    requests_total: number;
    last_request: string | null;
    last_launch: string | null;
    /** The prompt that it evaluates now. */
    prompt?: Unfinished;
    /** What the request is about that was launched in it last. */
    last_title?: Title;
}

export interface Unfinished {
    number: number;
    id: string | null;
    reused: number;
    evaluated: number;
    /** Tokens in the batch that the engine evaluates now. */
    in_batch?: number;
    /** The client has left while that batch is evaluated. */
    client_left?: boolean;
    /** All of its tokens, where they are known. */
    tokens?: number | null;
    seconds_left?: number | null;
    seconds: number;
    tokens_per_second: number | null;
}

/** How far files have been read. */
export interface FilesRead {
    bytes_read: number;
    bytes: number;
}

export interface ReuseOver {
    prompts: number;
    reused: number;
    evaluated: number;
    hit_ratio: number | null;
}

export interface Stats {
    at: string;
    epoch: string;
    uptime_seconds: number;
    hook_version: string;
    mode: string;
    engine: { name: string; version: string | null; build: string | null };
    model: { name: string } | null;
    model_state: string;
    flags: Record<string, unknown> | null;
    slots: Slot[];
    host: { entries: number; tokens: number; bytes: number; limit_bytes: number | null };
    tokens: { resident: number; shared: number; live_requests: number };
    requests: { seen: number; finished: number };
    reuse: { total: ReuseOver; last_minute: ReuseOver; causes: Partial<Causes>; seconds: number };
    evictions: Record<string, number>;
    undecided: boolean;
    store: { ready?: boolean; lost?: boolean; reading?: FilesRead | null; loaded_tokens?: number; tokens?: number; bytes?: number; problem?: string | null } | null;
    recording: { file: string; bytes: number; ended: string | null } | null;
    control: { refused: number; work_us: number } | null;
}

export interface Branch {
    parent: number | null;
    from: number;
    to: number;
    slots: number[];
    host: number;
    requests: Name[];
    requests_total: number;
    merged: { branches: number; tokens: number; requests: number };
    /** Only in reports: when it was evaluated first, milliseconds since 1970. */
    first?: number;
}

export interface Tree {
    at: string;
    epoch: string;
    resident: number;
    branches: Branch[];
}

export interface ChangeEvent {
    epoch: string;
    sequence: number;
    at: string;
    change: string;
    id?: string;
    ids?: string[];
    slot?: number;
    tokens?: number;
    bytes?: number | null;
    reason?: string;
    from?: Place;
    by?: string | null;
}

/** A setting that was simulated. */
export interface Point {
    parallel: number;
    kv_unified: boolean;
    cache_ram: number;
    slot_prompt_similarity: number;
    cache_reuse: number;
    /** 10⁹ bytes; 0: there is no prefix store. */
    store_gb: number;
    reused_share: number;
    /** With what the prefix store had. */
    spared_share: number;
    prompt_tokens: number;
    reused_tokens: number;
    evaluated_tokens: number;
    prompt_seconds: number;
    /** What copies for the store take. */
    store_seconds: number;
    waited_seconds: number;
    refused: number;
    context_bytes: number;
    host_bytes: number;
    store_bytes: number;
}

export interface AdvisedChange {
    flags: string[];
    /** The store's budget, if that changes. */
    store_gb: number | null;
    point: Point;
}

export interface Advice {
    recorded: Point;
    changes: AdvisedChange[];
    /** The best of slots, host cache and store, each by itself. */
    alone: AdvisedChange[];
    tokens: { prefix: number; behind_a_difference: number; not_wanted: number; never_sent: number; differs_at: number | null };
}

/** The data of a report. */
export interface Report {
    about: {
        kind: "recording" | "server" | "log";
        title: string;
        made: string;
        version: string;
        notes: string[];
        /** Times are since the recording began. */
        relative?: boolean;
    };
    stats?: Partial<Stats>;
    tree?: Tree;
    requests?: Evaluated[];
    changes?: ChangeEvent[];
    advice?: Advice;
    grid?: Point[];
}
