/* loadgen: bounded HTTP/1.1 load for OpenAI-compatible servers on a loopback address.
 *
 * One thread, epoll. Buffered and streamed (SSE) answers, closed loop or a constant arrival rate.
 *
 *   loadgen --url http://127.0.0.1:9001/v1/chat/completions --body FILE [--header "K: V"]...
 *           --conns N --duration S [--warmup S] [--rate RPS] [--stagger S] [--stream]
 *           [--requests N] [--hangup PERCENT --hangup-events N] [--seed N]
 *
 * Prints one JSON object. Latencies are in microseconds. With --rate the clock of a request starts
 * when it was due, not when it could be sent, so a stalled server is not flattered; requests that
 * were due and never sent for want of a free connection are "unissued". Answers 429 and 503 are
 * "refused" and have latencies of their own. When the time is over nothing new is sent, and what is
 * under way is read to its end without being counted, so that the load leaves no torn requests.
 *
 * Stream figures: ttft is up to the first event that carries content; gap is between the arrivals
 * of consecutive content events of one stream; transit is arrival time less the "@<ns>" stamp that
 * mock_upstream writes into each chunk, so it is the one-way cost of the whole path.
 *
 * --hangup: this share of the requests is left by the client: at once after sending, or after
 * 1..N content events; every other one with a reset instead of an orderly end.
 * --requests N: no end in time (an hour at most), no warm-up, N requests in all.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
typedef struct {
    uint32_t *v;
    size_t n, cap;
    double sum;
} samples; /* in 1/10 us */
static void add(samples *s, int64_t ns) {
    if (ns < 0) ns = 0;
    if (s->n == s->cap) {
        s->v = realloc(s->v, sizeof *s->v * (s->cap = s->cap ? s->cap * 2 : 65536));
        if (!s->v) abort();
    }
    uint64_t t = ns / 100;
    s->v[s->n++] = t > UINT32_MAX ? UINT32_MAX : t;
    s->sum += ns / 1000.0;
}
static int cmp(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}
static void put(const char *name, samples *s) {
    qsort(s->v, s->n, sizeof *s->v, cmp);
    printf(",\"%s\":{\"n\":%zu", name, s->n);
    if (s->n) {
        printf(",\"mean\":%.1f", s->sum / s->n);
        struct {
            const char *k;
            double q;
        } q[] = {{"p50", .5}, {"p90", .9}, {"p95", .95}, {"p99", .99}, {"p999", .999}};
        for (int i = 0; i < 5; i++) {
            size_t k = q[i].q * s->n;
            if (k >= s->n) k = s->n - 1;
            printf(",\"%s\":%.1f", q[i].k, s->v[k] / 10.0);
        }
        printf(",\"max\":%.1f", s->v[s->n - 1] / 10.0);
    }
    printf("}");
}
enum { IDLE, SENDING, WAITING };
enum { H_HEAD, H_LEN, H_CHUNK_SIZE, H_CHUNK, H_CHUNK_END, H_TRAILER, H_EOF };
typedef struct conn {
    int fd, st;
    size_t off;
    int64_t t0, tsent, tprev; /* when due / begun / last content event */
    int hst, status, close;
    size_t left;
    char head[16384];
    size_t hn;
    char line[65536];
    size_t ln; /* current SSE line */
    int events, done, fin, first;
    int reused;
    int hang_at; /* content events after which the client leaves; -1: it stays */
} conn;
static int ep, stream, nconn, measuring;
static conn *cs;
static struct sockaddr_in addr;
static char *req;
static size_t reqn;
static samples lat, ttft, gap, transit, total, refused;
static uint64_t ok, bad, sockerr, events, incomplete, undone, reconnects, bytes, refusals, hung_up;
static int last_status;
static char errbody[400];
static size_t errn;
static int64_t t_begin, t_end;
static double rate;
static uint64_t issued, due_i;
static uint64_t max_requests;
static double stagger;
static int started;
static conn **idle;
static int idle_n;
static int hangup_percent, hangup_events;
static uint64_t rng = 88172645463325252ull;

static uint64_t rnd(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

static void begin(conn *c, int64_t due);
static void arm(conn *c, uint32_t m) {
    struct epoll_event e = {.events = m, .data.ptr = c};
    if (epoll_ctl(ep, EPOLL_CTL_MOD, c->fd, &e)) epoll_ctl(ep, EPOLL_CTL_ADD, c->fd, &e);
}
static void open_conn(conn *c) {
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        perror("socket");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->reused = 0;
    if (connect(c->fd, (void *)&addr, sizeof addr) && errno != EINPROGRESS) {
        perror("connect");
        exit(1);
    }
}
static void drop(conn *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}
static void try_send(conn *c) {
    while (c->off < reqn) {
        ssize_t n = send(c->fd, req + c->off, reqn - c->off, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN || errno == ENOTCONN) {
                arm(c, EPOLLIN | EPOLLOUT);
                return;
            }
            n = 0;
            break;
        }
        c->off += n;
    }
    if (c->off < reqn) return; /* error shows up as a hang-up event */
    c->st = WAITING;
    arm(c, c->hang_at == 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
}
static void next(conn *c) {
    c->st = IDLE;
    if (now_ns() >= t_end) return;
    if (rate > 0) {
        int64_t due = t_begin + (int64_t)(due_i * 1e9 / rate);
        if (due <= now_ns()) {
            due_i++;
            begin(c, due);
        } else
            idle[idle_n++] = c;
    } else if (!max_requests || issued < max_requests)
        begin(c, now_ns());
}
static void begin(conn *c, int64_t due) {
    issued++;
    c->t0 = due;
    c->tsent = now_ns();
    c->off = 0;
    c->hst = H_HEAD;
    c->hn = 0;
    c->ln = 0;
    c->events = 0;
    c->done = c->fin = 0;
    c->first = 1;
    c->status = 0;
    c->close = 0;
    c->left = 0;
    c->hang_at = -1;
    if (hangup_percent && (int)(rnd() % 100) < hangup_percent)
        c->hang_at = (int)(rnd() % (uint64_t)(hangup_events + 1));
    c->st = SENDING;
    if (c->fd < 0) {
        open_conn(c);
        arm(c, EPOLLOUT | EPOLLIN);
        return;
    }
    try_send(c);
}
static void finish(conn *c, int good) {
    int64_t t = now_ns();
    if (measuring) {
        if (!good) sockerr++;
        else if (c->status >= 200 && c->status < 300) {
            if (stream && !c->done && !c->fin) incomplete++;
            else {
                ok++;
                undone += stream && !c->done;
                add(stream ? &total : &lat, t - c->t0);
            }
        } else if (c->status == 429 || c->status == 503) {
            refusals++;
            add(&refused, t - c->t0);
        } else {
            bad++;
            last_status = c->status;
        }
    } else if (!good || c->status >= 300)
        last_status = c->status;
    c->reused = 1;
    if (c->close || !good) {
        drop(c);
        if (measuring) reconnects++;
    }
    next(c);
}
/* the client leaves in the middle of an answer */
static void hang_up(conn *c) {
    if (measuring) hung_up++;
    if (rnd() & 1) {
        struct linger l = {1, 0};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    drop(c);
    next(c);
}
static void sse_line(conn *c) {
    if (c->ln && c->line[c->ln - 1] == '\r') c->ln--;
    c->line[c->ln] = 0;
    if (c->ln == 0) return;
    if (strncmp(c->line, "data:", 5)) return;
    char *d = c->line + 5;
    while (*d == ' ') d++;
    if (!strncmp(d, "[DONE]", 6)) {
        c->done = 1;
        return;
    }
    int64_t t = now_ns();
    char *at = memchr(d, '@', c->ln - (d - c->line));
    if (!at) { /* role-only, finish or usage event */
        char *f = strstr(d, "\"finish_reason\":");
        if (f) {
            f += 16;
            while (*f == ' ') f++;
            if (*f == '"') c->fin = 1;
        }
        return;
    }
    int64_t s = strtoll(at + 1, NULL, 10);
    if (measuring) {
        events++;
        if (s > 0) add(&transit, t - s);
        if (c->first) add(&ttft, t - c->t0);
        else
            add(&gap, t - c->tprev);
    }
    c->first = 0;
    c->events++;
    c->tprev = t;
}
static void body(conn *c, const char *p, size_t n) {
    if (measuring) bytes += n;
    if (c->status >= 300 && errn < sizeof errbody - 1) {
        size_t k = sizeof errbody - 1 - errn;
        if (k > n) k = n;
        memcpy(errbody + errn, p, k);
        errn += k;
    }
    if (!stream || c->status >= 300) return;
    while (n) {
        const char *nl = memchr(p, '\n', n);
        size_t k = nl ? (size_t)(nl - p) : n;
        size_t room = sizeof c->line - 2 - c->ln;
        size_t w = k < room ? k : room;
        memcpy(c->line + c->ln, p, w);
        c->ln += w;
        if (!nl) return;
        sse_line(c);
        c->ln = 0;
        p = nl + 1;
        n -= k + 1;
    }
}
/* returns 1 when the answer is complete */
static int feed(conn *c, const char *p, size_t n) {
    while (n) switch (c->hst) {
        case H_HEAD: {
            size_t k = sizeof c->head - 1 - c->hn;
            if (k > n) k = n;
            size_t from = c->hn > 3 ? c->hn - 3 : 0;
            memcpy(c->head + c->hn, p, k);
            c->hn += k;
            char *e = memmem(c->head + from, c->hn - from, "\r\n\r\n", 4);
            if (!e) {
                if (c->hn >= sizeof c->head - 1) {
                    c->close = 1;
                    c->status = 599;
                    return 1;
                }
                return 0;
            }
            size_t used = k - (c->hn - (e + 4 - c->head));
            p += used;
            n -= used;
            e[2] = 0;
            c->status = atoi(c->head + 9);
            if (c->status == 100) {
                c->hn = 0;
                break;
            }
            char *l;
            c->hst = H_EOF;
            if ((l = strcasestr(c->head, "\ncontent-length:"))) {
                c->left = strtoul(l + 16, NULL, 10);
                c->hst = H_LEN;
            }
            if ((l = strcasestr(c->head, "\ntransfer-encoding: chunked"))) c->hst = H_CHUNK_SIZE;
            if (strcasestr(c->head, "\nconnection: close")) c->close = 1;
            if (c->hst == H_EOF) c->close = 1;
            if (c->hst == H_LEN && !c->left) return 1;
            c->hn = 0;
            break;
        }
        case H_LEN: {
            size_t k = n < c->left ? n : c->left;
            body(c, p, k);
            c->left -= k;
            if (!c->left) return 1;
            p += k;
            n -= k;
            break;
        }
        case H_EOF: body(c, p, n); return 0;
        case H_CHUNK_SIZE: {
            const char *nl = memchr(p, '\n', n);
            size_t k = nl ? (size_t)(nl - p) : n;
            if (c->hn + k < sizeof c->head) {
                memcpy(c->head + c->hn, p, k);
                c->hn += k;
            }
            if (!nl) return 0;
            c->head[c->hn] = 0;
            c->left = strtoul(c->head, NULL, 16);
            c->hn = 0;
            p = nl + 1;
            n -= k + 1;
            c->hst = c->left ? H_CHUNK : H_TRAILER;
            break;
        }
        case H_CHUNK: {
            size_t k = n < c->left ? n : c->left;
            body(c, p, k);
            c->left -= k;
            p += k;
            n -= k;
            if (!c->left) c->hst = H_CHUNK_END;
            break;
        }
        case H_CHUNK_END: {
            const char *nl = memchr(p, '\n', n);
            if (!nl) return 0;
            n -= nl + 1 - p;
            p = nl + 1;
            c->hst = H_CHUNK_SIZE;
            break;
        }
        case H_TRAILER: {
            const char *nl = memchr(p, '\n', n);
            if (!nl) {
                c->hn += n;
                return 0;
            }
            size_t k = nl - p + c->hn;
            int empty = k == 0 || (k == 1);
            c->hn = 0;
            n -= nl + 1 - p;
            p = nl + 1;
            if (empty) return 1;
            break;
        }
        }
    return 0;
}
static void on_event(conn *c, uint32_t m) {
    if (c->fd < 0) return;
    if (c->st == WAITING && c->hang_at == 0) {
        hang_up(c);
        return;
    }
    if (c->st == SENDING && (m & EPOLLOUT)) try_send(c);
    if (!(m & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    static char buf[262144];
    for (;;) {
        ssize_t n = recv(c->fd, buf, sizeof buf, 0);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            if (c->st == IDLE) {
                drop(c);
                return;
            }
            if (c->hst == H_EOF) {
                c->close = 1;
                finish(c, 1);
                return;
            }
            if (c->reused && c->hst == H_HEAD &&
                c->hn == 0) { /* keep-alive race: ask again on a new connection */
                drop(c);
                if (measuring) reconnects++;
                issued--;
                int64_t t0 = c->t0;
                begin(c, t0);
                return;
            }
            finish(c, 0);
            return;
        }
        if (c->st == IDLE) continue;
        if (feed(c, buf, n)) {
            if (c->off < reqn) c->close = 1; /* an early answer: the rest of the body is not sent */
            finish(c, 1);
            return;
        }
        if (c->hang_at > 0 && c->events >= c->hang_at) {
            hang_up(c);
            return;
        }
        if ((size_t)n < sizeof buf) return;
    }
}
static char host[128] = "127.0.0.1", path[512] = "/", extra[8192];
static char *body_file;
static int port = 80;
static double duration_s = 3, warmup_s = 0.5;

/* one option with its value; 0 when it is unknown or malformed */
static int option(const char *a, char *v) {
    if (!strcmp(a, "--url")) return sscanf(v, "http://%127[^:/]:%d%511s", host, &port, path) >= 2;
    if (!strcmp(a, "--header")) {
        strncat(extra, v, sizeof extra - strlen(extra) - 3);
        strcat(extra, "\r\n");
    } else if (!strcmp(a, "--body"))
        body_file = v;
    else if (!strcmp(a, "--conns"))
        nconn = atoi(v);
    else if (!strcmp(a, "--duration"))
        duration_s = atof(v);
    else if (!strcmp(a, "--warmup"))
        warmup_s = atof(v);
    else if (!strcmp(a, "--rate"))
        rate = atof(v);
    else if (!strcmp(a, "--stagger"))
        stagger = atof(v);
    else if (!strcmp(a, "--requests"))
        max_requests = strtoull(v, NULL, 10);
    else if (!strcmp(a, "--hangup"))
        hangup_percent = atoi(v);
    else if (!strcmp(a, "--hangup-events"))
        hangup_events = atoi(v);
    else if (!strcmp(a, "--seed"))
        rng ^= strtoull(v, NULL, 10) * 2654435761ull;
    else
        return 0;
    return 1;
}
static int options(int argc, char **argv) {
    nconn = 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--stream")) {
            stream = 1;
            continue;
        }
        if (i + 1 >= argc || !option(argv[i], argv[i + 1])) {
            fprintf(stderr, "unknown, malformed or without a value: %s\n", argv[i]);
            return 0;
        }
        i++;
    }
    if (nconn < 1) nconn = 1;
    if (max_requests) duration_s = 3600, warmup_s = 0;
    else if (duration_s > 120)
        duration_s = 120;
    if (!strcmp(host, "localhost")) strcpy(host, "127.0.0.1");
    addr.sin_family = AF_INET;
    addr.sin_port = htons(port);
    if (inet_pton(AF_INET, host, &addr.sin_addr) != 1 ||
        (ntohl(addr.sin_addr.s_addr) >> 24) != 127) {
        fprintf(stderr, "only loopback addresses (127.0.0.0/8) are loaded\n");
        return 0;
    }
    return 1;
}
static int make_request(void) {
    char *b = NULL;
    size_t bn = 0;
    if (body_file) {
        FILE *f = fopen(body_file, "rb");
        if (!f) {
            perror(body_file);
            return 0;
        }
        fseek(f, 0, SEEK_END);
        bn = ftell(f);
        rewind(f);
        b = malloc(bn + 1);
        if (!b || fread(b, 1, bn, f) != bn) return 0;
        fclose(f);
    }
    req = malloc(bn + 16384);
    if (!req) return 0;
    reqn = sprintf(req, "%s %s HTTP/1.1\r\nhost: %s:%d\r\n%s", b ? "POST" : "GET", path, host, port,
                   extra);
    if (b)
        reqn +=
            sprintf(req + reqn, "content-type: application/json\r\ncontent-length: %zu\r\n", bn);
    reqn += sprintf(req + reqn, "\r\n");
    if (b) memcpy(req + reqn, b, bn);
    reqn += bn;
    free(b);
    return 1;
}
/* wait for events until an instant */
static void turn(int64_t until) {
    struct epoll_event ev[512];
    int64_t d = until - now_ns();
    if (d < 0) d = 0;
    struct timespec ts = {d / 1000000000, d % 1000000000};
    int n = epoll_pwait2(ep, ev, 512, &ts, NULL);
    for (int i = 0; i < n; i++) on_event(ev[i].data.ptr, ev[i].events);
}
/* send what is due; the instant at which something is due next, at most `until` */
static int64_t send_due(int64_t t, int64_t until) {
    while (rate > 0) {
        int64_t due = t_begin + (int64_t)(due_i * 1e9 / rate);
        if (due > t) {
            if (due < until && idle_n) until = due;
            break;
        }
        if (!idle_n) break;
        due_i++;
        begin(idle[--idle_n], due);
    }
    while (started < nconn) { /* spread the first requests over the stagger time */
        int64_t due = t_begin + (int64_t)(stagger * 1e9 * started / nconn);
        if (due > t) return due < until ? due : until;
        begin(&cs[started++], t);
    }
    return until;
}
static int under_way(void) {
    int n = 0;
    for (int i = 0; i < nconn; i++) n += cs[i].st == SENDING || cs[i].st == WAITING;
    return n;
}
static double seconds(struct timeval a, struct timeval b) {
    return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_usec - a.tv_usec) / 1e6;
}
#define LLU(x) ((unsigned long long)(x))
static void report(double el, double cpu, int stalled, int undrained, uint64_t unissued) {
    printf("{\"conns\":%d,\"seconds\":%.3f,\"rate\":%.1f,\"ok\":%llu,\"refused\":%llu,"
           "\"non2xx\":%llu,\"last_bad_status\":%d,\"socket_errors\":%llu,\"hung_up\":%llu,"
           "\"incomplete_streams\":%llu,\"streams_without_done\":%llu,\"stalled_conns\":%d,"
           "\"undrained\":%d,\"unissued\":%llu,\"reconnects\":%llu,\"rps\":%.1f,\"mb_per_s\":%.2f,"
           "\"client_cpu_s\":%.2f",
           nconn, el, rate, LLU(ok), LLU(refusals), LLU(bad), last_status, LLU(sockerr),
           LLU(hung_up), LLU(incomplete), LLU(undone), stalled, undrained, LLU(unissued),
           LLU(reconnects), ok / el, bytes / el / 1e6, cpu);
    if (stream) {
        printf(",\"chunks\":%llu,\"chunks_per_s\":%.0f", LLU(events), events / el);
        put("ttft_us", &ttft);
        put("gap_us", &gap);
        put("transit_us", &transit);
        put("total_us", &total);
    } else
        put("latency_us", &lat);
    if (refusals) put("refused_us", &refused);
    if (errn) {
        for (size_t i = 0; i < errn; i++)
            if (errbody[i] == '"' || errbody[i] == '\\' || (unsigned char)errbody[i] < 32)
                errbody[i] = '\'';
        printf(",\"error_sample\":\"%s\"", errbody);
    }
    printf("}\n");
}
int main(int argc, char **argv) {
    if (!options(argc, argv)) return 2;
    if (!make_request()) return 1;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    ep = epoll_create1(EPOLL_CLOEXEC);
    cs = calloc(nconn, sizeof *cs);
    idle = calloc(nconn + 1, sizeof *idle);
    t_begin = now_ns();
    int64_t t_meas = t_begin + (int64_t)(warmup_s * 1e9), t_last = 0;
    t_end = t_meas + (int64_t)(duration_s * 1e9);
    struct rusage r0, r1;
    getrusage(RUSAGE_SELF, &r0);
    measuring = max_requests > 0; /* before the first request, so that every one is counted */
    for (int i = 0; i < nconn; i++) {
        cs[i].fd = -1;
        if (rate > 0) idle[idle_n++] = &cs[i];
        else if (!stagger && (!max_requests || issued < max_requests))
            begin(&cs[i], now_ns());
    }
    if (!stagger || rate > 0) started = nconn;
    while (!t_last) {
        int64_t t = now_ns();
        if (!measuring && t >= t_meas) {
            measuring = 1;
            t_meas = t;
            getrusage(RUSAGE_SELF, &r0);
        }
        if (t >= t_end || (max_requests &&
                           ok + bad + refusals + sockerr + incomplete + hung_up >= max_requests)) {
            measuring = 0;
            t_last = t;
            t_end = t; /* nothing new is sent from here on */
            break;
        }
        turn(send_due(t, measuring ? t_end : t_meas));
    }
    getrusage(RUSAGE_SELF, &r1);
    double el = (t_last - t_meas) / 1e9;
    double cpu = seconds(r0.ru_utime, r1.ru_utime) + seconds(r0.ru_stime, r1.ru_stime);
    int stalled = 0; /* connections whose present request is older than the whole measured time */
    for (int i = 0; i < nconn; i++)
        if ((cs[i].st == SENDING || cs[i].st == WAITING) && cs[i].tsent < t_meas) stalled++;
    uint64_t due_in_all = rate > 0 ? (uint64_t)((t_last - t_begin) / 1e9 * rate) : due_i;
    uint64_t unissued = due_in_all > due_i ? due_in_all - due_i : 0;
    int64_t patience = now_ns() + 15000000000ll;
    while (under_way() && now_ns() < patience) turn(now_ns() + 20000000);
    report(el, cpu, stalled, under_way(), unissued);
    return 0;
}
