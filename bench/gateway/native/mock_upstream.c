/* mock_upstream: a small, fast stand-in for an OpenAI-compatible model provider.
 *
 * One thread, epoll, HTTP/1.1 keep-alive and pipelining. No dependencies.
 *
 *   mock_upstream [--host 127.0.0.1] [--port 0]     prints the port it got on standard output
 *
 *   POST /v1/chat/completions   buffered JSON, or SSE when "stream": true
 *   POST /v1/embeddings         256-number vectors
 *   GET  /v1/models             model list
 *   GET  /health                200 {"status":"ok"}
 *   GET  /__stats               counters, not counted themselves: see `stats_body`
 *
 * What an answer looks like is chosen by dash-separated words in the model name, so it works
 * through any gateway that forwards the model name; words that mean nothing are ignored:
 *   mock                        plain answer (about 700 bytes), 16 chunks when streaming
 *   mock-stream-64-20ms         64 chunks, 20 ms before each one (0ms: as fast as possible)
 *   mock-slow-300ms             300 ms before the first byte (may be combined with -stream-..)
 *   mock-429 | mock-429-7       429 with "retry-after: 7" (default 1)
 *   mock-500 mock-503 mock-400  that status with an OpenAI error object
 *   mock-cut-5                  stream: 5 chunks, then the connection is dropped with no [DONE]
 *                               buffered: half of the body, then the connection is dropped
 *   mock-hang                   accepts the request and never answers
 *   mock-badjson                200 whose body is not JSON
 *   mock-flaky-30               30 % of the requests answer 500
 * Each stream chunk's content carries "@<CLOCK_MONOTONIC ns>" taken as it is sent, so that a
 * client on the same machine can measure one-way transit time for every chunk.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAXMODEL 128
enum { REQ_PLAIN, REQ_STREAM };
enum { ST_READ, ST_DELAY, ST_STREAM, ST_HANG };

typedef struct conn {
    int fd, state, want_out, close_after, dead;
    char *in;
    size_t inlen, incap;
    char *out;
    size_t outoff, outlen, outcap;
    /* the request being answered */
    char model[MAXMODEL];
    int stream, include_usage, ninput, kind; /* kind: 0 chat 1 embeddings */
    int status, retry_after, cut, badjson;
    int total, sent;            /* chunks */
    int64_t delay_ns, deadline; /* per chunk delay, next timer */
    int heap_i;                 /* -1: not in heap */
    int in_ring;
} conn;

/* What /__stats tells. A chat counts once its whole request was read; "billed" is what a vendor
 * would charge for answers that were written to their end; "left" are answers that the other side
 * did not wait for. */
static struct {
    uint64_t requests, accepted, chats, chat_bytes, embeddings, streams, streams_done, chunks;
    uint64_t billed_input, billed_cached, billed_output, left, s2xx, s4xx, s5xx, cut;
    int64_t open;
} S;
enum { FRESH_TOKENS = 8, CACHED_TOKENS = 16, PLAIN_TOKENS = 28 };
static int ep;
static conn **heap;
static int heap_n, heap_cap;
static conn **ring;
static int ring_n, ring_cap;
static conn **grave;
static int grave_n, grave_cap;
static uint64_t rng = 88172645463325252ull;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static uint64_t rnd(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}
static void *grow(void *p, size_t n) {
    p = realloc(p, n);
    if (!p) abort();
    return p;
}

/* ---- timer heap ---- */
static void heap_set(int i, conn *c) {
    heap[i] = c;
    c->heap_i = i;
}
static void heap_up(int i) {
    conn *c = heap[i];
    while (i && heap[(i - 1) / 2]->deadline > c->deadline) {
        heap_set(i, heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_set(i, c);
}
static void heap_down(int i) {
    conn *c = heap[i];
    for (;;) {
        int k = 2 * i + 1;
        if (k >= heap_n) break;
        if (k + 1 < heap_n && heap[k + 1]->deadline < heap[k]->deadline) k++;
        if (heap[k]->deadline >= c->deadline) break;
        heap_set(i, heap[k]);
        i = k;
    }
    heap_set(i, c);
}
static void timer_del(conn *c) {
    int i = c->heap_i;
    if (i < 0) return;
    c->heap_i = -1;
    conn *last = heap[--heap_n];
    if (last == c) return;
    heap_set(i, last);
    heap_up(i);
    heap_down(last->heap_i);
}
static void timer_add(conn *c, int64_t when) {
    timer_del(c);
    c->deadline = when;
    if (heap_n == heap_cap)
        heap = grow(heap, sizeof *heap * (heap_cap = heap_cap ? 2 * heap_cap : 256));
    heap_set(heap_n++, c);
    heap_up(c->heap_i);
}
static void ring_add(conn *c) {
    if (c->in_ring) return;
    if (ring_n == ring_cap)
        ring = grow(ring, sizeof *ring * (ring_cap = ring_cap ? 2 * ring_cap : 256));
    ring[ring_n++] = c;
    c->in_ring = 1;
}

/* ---- output ---- */
static void out_raw(conn *c, const void *p, size_t n) {
    if (c->outlen + n > c->outcap) c->out = grow(c->out, c->outcap = (c->outlen + n) * 2);
    memcpy(c->out + c->outlen, p, n);
    c->outlen += n;
}
static void outf(conn *c, const char *f, ...) {
    char b[4096];
    va_list a;
    va_start(a, f);
    int n = vsnprintf(b, sizeof b, f, a);
    va_end(a);
    out_raw(c, b, n < (int)sizeof b ? (size_t)n : sizeof b - 1);
}
static void conn_close(conn *c, int reset) {
    if (c->dead) return;
    c->dead = 1;
    if (c->state != ST_READ || c->outoff < c->outlen) S.left++;
    S.open--;
    timer_del(c);
    if (reset) {
        struct linger l = {1, 0};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    close(c->fd);
    if (grave_n == grave_cap)
        grave = grow(grave, sizeof *grave * (grave_cap = grave_cap ? 2 * grave_cap : 64));
    grave[grave_n++] = c;
}
static void want(conn *c, int out) {
    if (c->want_out == out) return;
    c->want_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e);
}
static void flush_out(conn *c) {
    while (c->outoff < c->outlen) {
        ssize_t n = send(c->fd, c->out + c->outoff, c->outlen - c->outoff, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno == EAGAIN) {
                want(c, 1);
                return;
            }
            conn_close(c, 0);
            return;
        }
        c->outoff += n;
    }
    c->outoff = c->outlen = 0;
    want(c, 0);
    if (c->close_after && c->state == ST_READ) conn_close(c, 0);
}

/* ---- answers ---- */
static const char *reason(int s) {
    switch (s) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 408: return "Request Timeout";
    case 429: return "Too Many Requests";
    case 500: return "Internal Server Error";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 529: return "Overloaded";
    default: return "Status";
    }
}
static void count(int s) {
    if (s < 300) S.s2xx++;
    else if (s < 500)
        S.s4xx++;
    else
        S.s5xx++;
}
static void send_body(conn *c, int status, const char *extra, const char *body, size_t n) {
    count(status);
    outf(c,
         "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\nx-request-id: "
         "req_mock_%llu\r\n%s%s\r\n",
         status, reason(status), n, (unsigned long long)S.requests, extra,
         c->close_after ? "connection: close\r\n" : "");
    out_raw(c, body, n);
    c->state = ST_READ;
}
static void answer_error(conn *c) {
    char b[512], x[64] = "";
    int n = snprintf(b, sizeof b,
                     "{\"error\":{\"message\":\"mock error "
                     "%d\",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}",
                     c->status,
                     c->status == 429   ? "requests"
                     : c->status >= 500 ? "server_error"
                                        : "invalid_request_error",
                     c->status == 429 ? "rate_limit_exceeded" : "mock_error");
    if (c->retry_after >= 0) snprintf(x, sizeof x, "retry-after: %d\r\n", c->retry_after);
    send_body(c, c->status, x, b, n);
}
static void bill(int output_tokens) {
    S.billed_input += FRESH_TOKENS;
    S.billed_cached += CACHED_TOKENS;
    S.billed_output += output_tokens;
}
static void answer_chat(conn *c) {
    char b[2048];
    int n =
        snprintf(b, sizeof b,
                 "{\"id\":\"chatcmpl-mock%012llu\",\"object\":\"chat.completion\",\"created\":"
                 "1767225600,\"model\":\"%s\",\"choices\":[{\"index\":0,"
                 "\"message\":{\"role\":\"assistant\",\"content\":\"The mock provider answers "
                 "every question in the same calm voice, so that what is "
                 "measured is the road and not the "
                 "traveller.\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                 "\"usage\":{\"prompt_tokens\":24,\"completion_tokens\":28,\"total_tokens\":52,"
                 "\"prompt_tokens_details\":{\"cached_tokens\":16,\"audio_tokens\":0},"
                 "\"completion_tokens_details\":{\"reasoning_tokens\":0,\"audio_tokens\":0,"
                 "\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0}},"
                 "\"service_tier\":\"default\",\"system_fingerprint\":\"fp_mock\"}",
                 (unsigned long long)S.requests, c->model);
    if (c->badjson) {
        const char *t = "{\"id\": \"chatcmpl-mock\", \"choices\": [ <html>";
        send_body(c, 200, "", t, strlen(t));
        return;
    }
    if (c->cut >= 0) { /* promise n bytes, send half, drop */
        outf(c, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n",
             n);
        out_raw(c, b, n / 2);
        S.cut++;
        flush_out(c);
        conn_close(c, 0);
        return;
    }
    bill(PLAIN_TOKENS);
    send_body(c, 200, "", b, n);
}
static void answer_embeddings(conn *c) {
    static char vec[4096];
    static size_t vn;
    if (!vn) {
        vec[vn++] = '[';
        for (int i = 0; i < 256; i++)
            vn += sprintf(vec + vn, "%s%.6f", i ? "," : "", ((i * 37) % 199 - 99) / 1000.0);
        vec[vn++] = ']';
    }
    int k = c->ninput < 1 ? 1 : c->ninput > 2048 ? 2048 : c->ninput;
    char *b = malloc((vn + 64) * k + 256);
    size_t n = sprintf(b, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < k; i++) {
        n += sprintf(b + n, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "",
                     i);
        memcpy(b + n, vec, vn);
        n += vn;
        b[n++] = '}';
    }
    n += sprintf(b + n, "],\"model\":\"%s\",\"usage\":{\"prompt_tokens\":%d,\"total_tokens\":%d}}",
                 c->model, 8 * k, 8 * k);
    send_body(c, 200, "", b, n);
    free(b);
}
static void chunk_out(conn *c, const char *data, int n) { /* one SSE event = one HTTP chunk */
    outf(c, "%x\r\n", n);
    out_raw(c, data, n);
    out_raw(c, "\r\n", 2);
}
#define CHUNK_HEAD                                                                                 \
    "data: "                                                                                       \
    "{\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1767225600,"       \
    "\"model\":\"%s\",\"service_tier\":\"default\",\"system_fingerprint\":\"fp_mock\","
static void stream_start(conn *c) {
    count(200);
    S.streams++;
    c->state = ST_STREAM;
    c->sent = 0;
    outf(c,
         "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: "
         "no-cache\r\ntransfer-encoding: chunked\r\nx-request-id: req_mock_%llu\r\n%s\r\n",
         (unsigned long long)S.requests, c->close_after ? "connection: close\r\n" : "");
}
static void process(conn *c);
/* send the next event of a stream; arranges for the one after */
static void stream_step(conn *c) {
    char b[1024];
    int n;
    if (c->dead || c->state != ST_STREAM) return;
    if (c->cut >= 0 && c->sent >= c->cut) {
        S.cut++;
        flush_out(c);
        c->state = ST_READ; /* it is we who leave */
        conn_close(c, 0);
        return;
    }
    if (c->sent < c->total) {
        n = snprintf(b, sizeof b,
                     CHUNK_HEAD "\"choices\":[{\"index\":0,\"delta\":{%s\"content\":\"w%d @%lld "
                                "\"},\"logprobs\":null,\"finish_reason\":null}]%s}\n\n",
                     c->model, c->sent ? "" : "\"role\":\"assistant\",", c->sent,
                     (long long)now_ns(), c->include_usage ? ",\"usage\":null" : "");
        chunk_out(c, b, n);
        c->sent++;
        S.chunks++;
        flush_out(c);
        if (c->dead) return;
        if (c->sent < c->total || c->cut >= 0) {
            if (c->delay_ns) timer_add(c, c->deadline + c->delay_ns);
            else if (!c->want_out)
                ring_add(c); /* blocked: resumed by EPOLLOUT */
            return;
        }
    }
    n = snprintf(b, sizeof b,
                 CHUNK_HEAD "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_"
                            "reason\":\"stop\"}]%s}\n\n",
                 c->model, c->include_usage ? ",\"usage\":null" : "");
    chunk_out(c, b, n);
    if (c->include_usage) {
        n = snprintf(b, sizeof b,
                     CHUNK_HEAD "\"choices\":[],\"usage\":{\"prompt_tokens\":24,\"completion_"
                                "tokens\":%d,\"total_tokens\":%d,"
                                "\"prompt_tokens_details\":{\"cached_tokens\":16,\"audio_tokens\":"
                                "0},\"completion_tokens_details\":{\"reasoning_tokens\":0}}}\n\n",
                     c->model, c->total, c->total + 24);
        chunk_out(c, b, n);
    }
    chunk_out(c, "data: [DONE]\n\n", 14);
    out_raw(c, "0\r\n\r\n", 5);
    c->state = ST_READ;
    S.streams_done++;
    bill(c->total);
    flush_out(c);
    if (!c->dead) process(c);
}
static void answer(conn *c) { /* after any first-byte delay */
    if (c->kind == 1 && c->status == 200) {
        answer_embeddings(c);
        return;
    }
    if (c->status != 200) {
        answer_error(c);
        return;
    }
    if (!c->stream) {
        answer_chat(c);
        return;
    }
    stream_start(c);
    c->deadline = now_ns();
    if (c->delay_ns) {
        flush_out(c);
        if (!c->dead) timer_add(c, c->deadline + c->delay_ns);
    } else
        ring_add(c);
}

/* ---- request parsing ---- */
static const char *skip_ws(const char *p, const char *e) {
    while (p < e && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}
static const char *
skip_str(const char *p,
         const char *e) { /* p after the opening quote; returns at the closing quote */
    while (p < e) {
        p = memchr(p, '"', e - p);
        if (!p) return e;
        const char *q = p;
        int bs = 0;
        while (q[-1] == '\\') {
            bs++;
            q--;
        }
        if (!(bs & 1)) return p;
        p++;
    }
    return e;
}
/* look at the top-level members of the body */
static void scan_body(conn *c, const char *p, const char *e) {
    int depth = 0, key = 1; /* key: at depth 1 the next string is a member name */
    while (p < e) {
        char ch = *p;
        if (ch == '"') {
            const char *s = p + 1, *q = skip_str(s, e);
            p = q < e ? q + 1 : e;
            if (depth == 1 && key) {
                const char *v = skip_ws(p, e);
                if (v < e && *v == ':') {
                    v = skip_ws(v + 1, e);
                    size_t n = q - s;
                    p = v;
                    key = 0;
                    if (n == 5 && !memcmp(s, "model", 5) && v < e && *v == '"') {
                        const char *ve = skip_str(v + 1, e);
                        size_t m = ve - v - 1;
                        if (m >= MAXMODEL) m = MAXMODEL - 1;
                        memcpy(c->model, v + 1, m);
                        c->model[m] = 0;
                    } else if (n == 6 && !memcmp(s, "stream", 6))
                        c->stream = v < e && *v == 't';
                    else if (n == 14 && !memcmp(s, "stream_options", 14)) {
                        const char *t = memmem(v, e - v > 80 ? 80 : e - v, "include_usage", 13);
                        if (t) {
                            t = skip_ws(t + 14, e);
                            if (t < e && *t == ':') {
                                t = skip_ws(t + 1, e);
                                c->include_usage = t < e && *t == 't';
                            }
                        }
                    } else if (n == 5 && !memcmp(s, "input", 5) && v < e && *v == '[') {
                        int d = 0, k = 1, nums = 1;
                        for (const char *t = v; t < e; t++) {
                            if (*t == '"') {
                                nums = 0;
                                t = skip_str(t + 1, e);
                            } else if (*t == '[') {
                                if (++d > 1) nums = 0;
                            } else if (*t == ']') {
                                if (!--d) break;
                            } else if (*t == ',' && d == 1)
                                k++;
                        }
                        c->ninput = nums ? 1 : k;
                    }
                }
            }
            continue;
        }
        if (ch == '{' || ch == '[') depth++;
        else if (ch == '}' || ch == ']')
            depth--;
        else if (ch == ',' && depth == 1)
            key = 1;
        p++;
    }
}
/* read the orders in the model name */
static void read_model(conn *c, int64_t *first_delay) {
    char m[MAXMODEL];
    strcpy(m, c->model);
    char *w[24];
    int n = 0;
    char *sv;
    for (char *t = strtok_r(m, "-", &sv); t && n < 24; t = strtok_r(NULL, "-", &sv)) w[n++] = t;
    for (int i = 0; i < n; i++) {
        const char *a = i + 1 < n ? w[i + 1] : "", *b = i + 2 < n ? w[i + 2] : "";
        if (!strcmp(w[i], "stream") && *a >= '0' && *a <= '9') {
            c->total = atoi(a);
            c->delay_ns = (int64_t)(atof(b) * 1e6);
            i += 2;
        } else if (!strcmp(w[i], "slow")) {
            *first_delay = (int64_t)(atof(a) * 1e6);
            i++;
        } else if (!strcmp(w[i], "cut")) {
            c->cut = atoi(a);
            i++;
        } else if (!strcmp(w[i], "hang"))
            c->state = ST_HANG;
        else if (!strcmp(w[i], "badjson"))
            c->badjson = 1;
        else if (!strcmp(w[i], "flaky")) {
            if ((int)(rnd() % 100) < atoi(a)) c->status = 500;
            i++;
        } else if (i == 1 && strlen(w[i]) == 3 && w[i][0] >= '4' && w[i][0] <= '5') {
            c->status = atoi(w[i]);
            if (c->status == 429) c->retry_after = *a ? atoi(a) : 1;
        }
    }
    if (c->cut > c->total) c->total = c->cut;
}
static int hdr_is(const char *l, const char *le, const char *name, size_t n) {
    return (size_t)(le - l) > n && l[n] == ':' && !strncasecmp(l, name, n);
}

#define LLU(x) ((unsigned long long)(x))
static int stats_body(char *b, size_t n) {
    return snprintf(
        b, n,
        "{\"requests\":%llu,\"accepted\":%llu,\"open\":%lld,\"chats\":%llu,\"chat_bytes\":%llu,"
        "\"embeddings\":%llu,\"streams\":%llu,\"streams_done\":%llu,\"chunks\":%llu,"
        "\"billed_input_tokens\":%llu,\"billed_cached_tokens\":%llu,\"billed_output_tokens\":%llu,"
        "\"left\":%llu,\"s2xx\":%llu,\"s4xx\":%llu,\"s5xx\":%llu,\"cut\":%llu}",
        LLU(S.requests), LLU(S.accepted), (long long)S.open, LLU(S.chats), LLU(S.chat_bytes),
        LLU(S.embeddings), LLU(S.streams), LLU(S.streams_done), LLU(S.chunks), LLU(S.billed_input),
        LLU(S.billed_cached), LLU(S.billed_output), LLU(S.left), LLU(S.s2xx), LLU(S.s4xx),
        LLU(S.s5xx), LLU(S.cut));
}
/* handle one complete request from c->in; returns 1 if one was consumed */
static int one_request(conn *c) {
    char *end = memmem(c->in, c->inlen, "\r\n\r\n", 4);
    if (!end) {
        if (c->inlen > 65536) conn_close(c, 1);
        return 0;
    }
    size_t hl = end + 4 - c->in, bl = 0, used;
    int chunked = 0, cl = 0, expect = 0;
    for (char *l = memchr(c->in, '\n', hl); l && l + 1 < end;) {
        l++;
        char *le = memchr(l, '\r', end + 2 - l);
        if (!le) break;
        if (hdr_is(l, le, "content-length", 14)) bl = strtoul(l + 15, NULL, 10);
        else if (hdr_is(l, le, "transfer-encoding", 17))
            chunked = memmem(l, le - l, "chunked", 7) != NULL;
        else if (hdr_is(l, le, "connection", 10))
            cl = memmem(l, le - l, "lose", 4) != NULL;
        else if (hdr_is(l, le, "expect", 6))
            expect = 1;
        l = le + 1;
    }
    char *body = c->in + hl;
    if (chunked) { /* find the end, then decode in place */
        char *p = body, *e = c->in + c->inlen, *w;
        for (;;) {
            char *nl = memchr(p, '\n', e - p);
            if (!nl) goto more;
            size_t n = strtoul(p, NULL, 16);
            p = nl + 1;
            if (n == 0) {
                char *t = memchr(p, '\n', e - p);
                if (!t) goto more;
                p = t + 1;
                break;
            }
            if ((size_t)(e - p) < n + 2) goto more;
            p += n + 2;
        }
        used = p - c->in;
        w = body;
        p = body;
        for (;;) {
            char *nl = memchr(p, '\n', e - p);
            size_t n = strtoul(p, NULL, 16);
            p = nl + 1;
            if (!n) break;
            memmove(w, p, n);
            w += n;
            p += n + 2;
        }
        bl = w - body;
    } else {
        if (c->inlen < hl + bl) {
            if (hl + bl > c->incap) c->in = grow(c->in, c->incap = hl + bl + 4096);
            goto more;
        }
        used = hl + bl;
    }
    if (!memmem(c->in, hl, "/__stats", 8)) S.requests++;
    c->close_after = cl;
    c->model[0] = 0;
    c->stream = c->include_usage = c->ninput = c->kind = c->badjson = 0;
    c->status = 200;
    c->retry_after = -1;
    c->cut = -1;
    c->total = 16;
    c->delay_ns = 0;
    char *path = memchr(c->in, ' ', hl);
    path = path ? path + 1 : c->in;
    char *pe = path + strcspn(path, " ?\r");
    size_t pn = pe - path;
#define ENDS(s) (pn >= sizeof s - 1 && !memcmp(pe - (sizeof s - 1), s, sizeof s - 1))
    if (c->in[0] == 'P' && (ENDS("/chat/completions") || ENDS("/embeddings"))) {
        int64_t fd = 0;
        c->kind = ENDS("/embeddings");
        if (c->kind) S.embeddings++;
        else {
            S.chats++;
            S.chat_bytes += bl;
        }
        scan_body(c, body, body + bl);
        if (!c->model[0]) {
            c->status = 400;
        }
        c->state = ST_READ;
        read_model(c, &fd);
        memmove(c->in, c->in + used, c->inlen - used);
        c->inlen -= used;
        if (c->state == ST_HANG) return 0;
        if (fd) {
            c->state = ST_DELAY;
            timer_add(c, now_ns() + fd);
            return 0;
        }
        answer(c);
        return !c->dead && c->state == ST_READ;
    }
    char b[2048];
    int n;
    if (ENDS("/models"))
        n = snprintf(b, sizeof b,
                     "{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\","
                     "\"created\":1767225600,\"owned_by\":\"mock\"},{\"id\":\"mock-stream-64-0ms\","
                     "\"object\":\"model\",\"created\":1767225600,\"owned_by\":\"mock\"}]}");
    else if (ENDS("/__stats"))
        n = stats_body(b, sizeof b);
    else if (ENDS("/health"))
        n = snprintf(b, sizeof b, "{\"status\":\"ok\"}");
    else {
        n = snprintf(b, sizeof b,
                     "{\"error\":{\"message\":\"no such "
                     "path\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}");
        c->status = 404;
    }
    memmove(c->in, c->in + used, c->inlen - used);
    c->inlen -= used;
    send_body(c, c->status, "", b, n);
    return 1;
more:
    if (expect && c->inlen == hl) {
        out_raw(c, "HTTP/1.1 100 Continue\r\n\r\n", 25);
        flush_out(c);
    }
    return 0;
}
static void process(conn *c) {
    while (!c->dead && c->state == ST_READ && c->inlen && one_request(c))
        if (c->close_after) break;
    if (!c->dead && c->outlen) flush_out(c);
}
static void on_read(conn *c) {
    int is_gone = 0; /* what arrived before the end still counts */
    for (;;) {
        if (c->incap - c->inlen < 4096) c->in = grow(c->in, c->incap = c->incap * 2 + 16384);
        ssize_t n = recv(c->fd, c->in + c->inlen, c->incap - c->inlen, 0);
        if (n > 0) {
            c->inlen += n;
            if (c->inlen < c->incap) break;
            continue;
        }
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        is_gone = 1;
        break;
    }
    process(c);
    if (is_gone && !c->dead) conn_close(c, 0);
}
int main(int argc, char **argv) {
    int port = 0;
    const char *host = "127.0.0.1";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--port") && i + 1 < argc) port = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--host") && i + 1 < argc)
            host = argv[++i];
        else {
            fprintf(stderr, "usage: %s [--host 127.0.0.1] [--port 0]\n", argv[0]);
            return 2;
        }
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1 || bind(ls, (void *)&a, sizeof a) ||
        listen(ls, 4096)) {
        perror("listen");
        return 1;
    }
    ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = NULL}, ev[512];
    epoll_ctl(ep, EPOLL_CTL_ADD, ls, &e);
    socklen_t an = sizeof a;
    getsockname(ls, (void *)&a, &an);
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    for (;;) {
        struct timespec ts, *tp = NULL;
        if (ring_n) {
            ts = (struct timespec){0, 0};
            tp = &ts;
        } else if (heap_n) {
            int64_t d = heap[0]->deadline - now_ns();
            if (d < 0) d = 0;
            ts = (struct timespec){d / 1000000000, d % 1000000000};
            tp = &ts;
        }
        int n = epoll_pwait2(ep, ev, 512, tp, NULL);
        for (int i = 0; i < n; i++) {
            conn *c = ev[i].data.ptr;
            if (!c) {
                for (int fd; (fd = accept4(ls, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    conn *k = calloc(1, sizeof *k);
                    k->fd = fd;
                    k->heap_i = -1;
                    S.accepted++;
                    S.open++;
                    struct epoll_event ke = {.events = EPOLLIN, .data.ptr = k};
                    epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ke);
                }
                continue;
            }
            if (c->dead) continue;
            if (ev[i].events & EPOLLOUT) {
                flush_out(c);
                if (!c->dead && !c->want_out && c->state == ST_STREAM && !c->delay_ns) ring_add(c);
            }
            if (!c->dead && (ev[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) on_read(c);
        }
        if (heap_n) {
            int64_t t = now_ns();
            while (heap_n && heap[0]->deadline <= t) {
                conn *c = heap[0];
                timer_del(c);
                if (c->state == ST_DELAY) {
                    answer(c);
                    if (!c->dead) {
                        if (c->outlen) flush_out(c);
                        if (!c->dead && c->state == ST_READ) process(c);
                    }
                } else
                    stream_step(c);
            }
        }
        if (ring_n) { /* one event to each fast stream per turn, as if from many model servers */
            int k = ring_n;
            conn **r = ring;
            ring = NULL;
            ring_n = ring_cap = 0;
            for (int i = 0; i < k; i++) {
                r[i]->in_ring = 0;
                if (!r[i]->dead) stream_step(r[i]);
            }
            free(r);
        }
        if (grave_n) {
            for (int i = 0; i < grave_n; i++) {
                conn *c = grave[i];
                if (c->in_ring)
                    for (int k = 0; k < ring_n; k++)
                        if (ring[k] == c) {
                            ring[k] = ring[--ring_n];
                            break;
                        }
                free(c->in);
                free(c->out);
                free(c);
            }
            grave_n = 0;
        }
    }
}
