/* What the pages do beyond HTML: draw the charts that are in them as data, switch the theme, and
   replace a part of a page.

   Every chart stands beside a table with the same figures, and every way on is a link or a form:
   without this script nothing is missing but the drawing and the whole page is loaded instead of the
   part that changes. Amounts are drawn from numbers and told as the texts
   that the server wrote. */
"use strict";
(function () {
  var PALETTE = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7", "--series-8"];
  // Patterns for eyes that tell no colours apart, light enough to leave the colour to the others.
  var DECALS = [
    { symbol: "none" },
    { dashArrayX: [1, 0], dashArrayY: [2, 6], rotation: -Math.PI / 4 },
    { symbol: "circle", symbolSize: 0.4, dashArrayX: [[6, 6], [0, 6, 6, 0]], dashArrayY: [6, 0] },
    { dashArrayX: [1, 0], dashArrayY: [2, 6], rotation: Math.PI / 4 },
    { dashArrayX: [1, 0], dashArrayY: [2, 7] },
    { symbol: "triangle", symbolSize: 0.5, dashArrayX: [[8, 8], [0, 8, 8, 0]], dashArrayY: [8, 2] },
    { dashArrayX: [2, 6], dashArrayY: [1, 0] },
    { symbol: "rect", symbolSize: 0.5, dashArrayX: [[6, 8], [0, 7, 6, 0]], dashArrayY: [7, 0] }
  ].map(function (one) { return Object.assign({ color: "rgba(255, 255, 255, 0.28)" }, one); });
  // Names of few bars are all written, on several lines where they are long, if they have the room.
  var EVERY_LABEL_MAX = 12;
  var LABEL_WIDTH_MIN = 64;
  var drawn = [];

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function read(figure) {
    var source = figure.querySelector('script[type="application/json"]');
    return source ? JSON.parse(source.textContent) : null;
  }

  function compact(value) {
    var size = Math.abs(value);
    if (size >= 1e9) return (value / 1e9).toFixed(1) + "G";
    if (size >= 1e6) return (value / 1e6).toFixed(1) + "M";
    if (size >= 1e3) return (value / 1e3).toFixed(1) + "k";
    if (size >= 1 || size === 0) return String(Math.round(value * 100) / 100);
    return value.toPrecision(2);
  }

  function told(data, series, place) {
    var texts = data.series[series].texts;
    return (texts ? texts[place] : compact(data.series[series].values[place])) + " " + data.unit;
  }

  // What the charts by label share: axes, grid, a pointer that tells what is under it.
  function drawing(plot, data, options) {
    var quiet = color("--quiet");
    var line = color("--line");
    var hasLegend = options.hasLegend === true;
    var chart = echarts.init(plot, null, { renderer: "canvas" });
    chart.setOption({
      animation: false,
      aria: { enabled: true, decal: { show: hasLegend && options.hasDecals === true, decals: DECALS } },
      color: PALETTE.map(color),
      textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: color("--text") },
      grid: { left: 8, right: 8, top: hasLegend ? 56 : 28, bottom: 8, containLabel: true },
      legend: hasLegend
        ? { type: "scroll", top: 0, left: 0, itemWidth: 16, itemHeight: 11, textStyle: { color: color("--text") }, pageTextStyle: { color: quiet } }
        : { show: false },
      tooltip: {
        trigger: "axis",
        renderMode: "richText",
        axisPointer: { type: options.pointer || "shadow" },
        formatter: options.tell
      },
      xAxis: {
        type: "category",
        data: data.labels,
        boundaryGap: options.pointer !== "line",
        axisLabel: options.everyLabel
          ? { color: quiet, interval: 0, hideOverlap: true, lineHeight: 14, width: Math.max(40, plot.clientWidth / data.labels.length - 12), overflow: "break" }
          : { color: quiet, hideOverlap: true },
        axisLine: { lineStyle: { color: line } },
        axisTick: { show: false }
      },
      yAxis: {
        type: "value",
        name: data.unit,
        nameTextStyle: { color: quiet, align: "left" },
        axisLabel: { color: quiet, formatter: compact },
        splitLine: { lineStyle: { color: line } }
      },
      series: options.series
    });
    return { resize: function () { chart.resize(); }, end: function () { chart.dispose(); } };
  }

  function pointed(data) {
    return function (points) {
      var lines = [points[0].axisValueLabel];
      points.forEach(function (point) {
        if (data.series[point.seriesIndex].values[point.dataIndex]) {
          lines.push(point.seriesName + ": " + told(data, point.seriesIndex, point.dataIndex));
        }
      });
      return lines.join("\n");
    };
  }

  function waterfall(plot, data) {
    var kinds = { total: color("--series-1"), more: color("--series-2"), less: color("--series-3") };
    var last = data.series.length - 1;
    return drawing(plot, data, {
      everyLabel: true,
      tell: function (points) {
        return points[0].axisValueLabel + "\n" + data.texts[points[0].dataIndex] + " " + data.unit;
      },
      series: data.series.map(function (one, index) {
        return {
          name: one.name,
          type: "bar",
          stack: "all",
          barMaxWidth: 60,
          silent: index === 0,
          // Every bar says what it is, a bar of nothing too.
          label: {
            show: index === last,
            position: "top",
            color: color("--text"),
            formatter: function (point) { return data.texts[point.dataIndex]; }
          },
          data: one.values.map(function (value, place) {
            return { value: value, itemStyle: { color: index === 0 ? "transparent" : kinds[data.kinds[place]] } };
          })
        };
      })
    });
  }

  function bars(plot, data) {
    return drawing(plot, data, {
      everyLabel: plot.clientWidth / data.labels.length >= LABEL_WIDTH_MIN && data.labels.length <= EVERY_LABEL_MAX,
      hasLegend: data.series.length > 1,
      hasDecals: true,
      tell: pointed(data),
      series: data.series.map(function (one) {
        return { name: one.name, type: "bar", stack: data.stacked ? "all" : undefined, data: one.values, barMaxWidth: 40 };
      })
    });
  }

  function areas(plot, data) {
    return drawing(plot, data, {
      hasLegend: true,
      pointer: "line",
      tell: pointed(data),
      series: data.series.map(function (one) {
        return { name: one.name, type: "line", stack: "all", symbol: "none", lineStyle: { width: 1 }, areaStyle: { opacity: 0.75 }, data: one.values };
      })
    });
  }

  function lines(plot, data) {
    var quiet = color("--quiet");
    var grid = { stroke: color("--line"), width: 1 };
    var series = [{
      label: data.label,
      value: function (_plot, value) { return value === null || data.labels[value] === undefined ? "" : data.labels[value]; }
    }];
    data.series.forEach(function (one, index) {
      series.push({
        label: one.name,
        stroke: color(PALETTE[index % PALETTE.length]),
        width: one.dashed ? 1.5 : 2.5,
        dash: one.dashed ? [6, 5] : undefined,
        spanGaps: false,
        points: { show: false },
        value: function (_plot, _value, _series, place) {
          return place === null || one.values[place] === null ? "" : told(data, index, place);
        }
      });
    });
    var size = function () { return { width: plot.clientWidth, height: plot.clientHeight - 40 }; };
    var first = size();
    var chart = new uPlot({
      width: first.width,
      height: first.height,
      scales: { x: { time: false } },
      legend: { live: true },
      series: series,
      axes: [
        {
          stroke: quiet, grid: { show: false }, ticks: { show: false },
          space: 16 + 7 * Math.max.apply(null, data.labels.map(function (label) { return label.length; })),
          values: function (_plot, splits) {
            return splits.map(function (at) { return Number.isInteger(at) && data.labels[at] !== undefined ? data.labels[at] : ""; });
          }
        },
        { stroke: quiet, grid: grid, ticks: { show: false }, size: 56, values: function (_plot, splits) { return splits.map(compact); } }
      ]
    }, [data.labels.map(function (_label, place) { return place; })].concat(data.series.map(function (one) { return one.values; })), plot);
    return { resize: function () { chart.setSize(size()); }, end: function () { chart.destroy(); } };
  }

  var KINDS = { bars: bars, areas: areas, lines: lines, waterfall: waterfall };

  function draw(figure) {
    var data = read(figure);
    var plot = figure.querySelector(".plot");
    if (!data || !plot || !data.labels.length) return;
    plot.hidden = false;
    try {
      drawn.push({ figure: figure, chart: KINDS[data.kind](plot, data) });
    } catch (error) {
      plot.hidden = true; // the table beside it has the same figures
      console.error("a chart could not be drawn", error);
    }
  }

  function drawAll() {
    drawn = drawn.filter(function (one) {
      one.chart.end();
      return false;
    });
    document.querySelectorAll("figure.chart").forEach(draw);
  }

  function theme(name) {
    if (name === "system") {
      delete document.documentElement.dataset.theme;
    } else {
      document.documentElement.dataset.theme = name;
    }
    try {
      if (name === "system") window.localStorage.removeItem("fareway-theme");
      else window.localStorage.setItem("fareway-theme", name);
    } catch (error) {
      console.warn("the theme is not kept: this browser forbids storage");
    }
    drawAll();
  }

  function refuse() {
    throw new Error("this page runs no text as code");
  }

  function start() {
    if (window.htmx) {
      window.htmx.registerExtension("fareway", {
        init: function (api) { api.initSecurity(null, refuse, refuse); }
      });
    }
    var chooser = document.querySelector("select[data-theme-chooser]");
    if (chooser) chooser.value = document.documentElement.dataset.theme || "system";
    drawAll();
  }

  // htmx: a view is replaced in place. An answer that is another page (an error, the login) is loaded
  // as one.
  function begin() {
    var view = document.getElementById("view");
    if (view) view.setAttribute("aria-busy", "true");
  }

  function end() {
    var view = document.getElementById("view");
    if (view) view.removeAttribute("aria-busy");
  }

  function received(event) {
    var ctx = event.detail.ctx;
    if (ctx.response.status < 400 && !ctx.response.raw.redirected && ctx.text.indexOf('id="view"') >= 0) return;
    event.preventDefault();
    window.location.assign(ctx.request.action);
  }

  function lost(event) {
    // The connection is gone: the browser's own page says so better than we can.
    if (event.detail.ctx) window.location.assign(event.detail.ctx.request.action);
  }

  function replaced() {
    drawAll();
    var view = document.getElementById("view");
    if (!view) return;
    var told = document.getElementById("told");
    if (told) told.textContent = view.dataset.told || "";
    if (document.activeElement === document.body || document.activeElement === null) {
      // What had the focus is gone, a filter for instance; reading goes on at the top of the view.
      view.setAttribute("tabindex", "-1");
      view.focus({ preventScroll: true });
    }
  }

  function plain(event) {
    // Fields that say nothing are not in the address.
    var ctx = event.detail.ctx;
    if (ctx.request.method !== "GET" || !ctx.request.body) return;
    Array.from(ctx.request.body.entries()).forEach(function (entry) {
      if (entry[1] === "") ctx.request.body.delete(entry[0]);
    });
  }

  function chosen(event) {
    // Links of this page and forms that ask it something replace its view; all others are followed
    // by the browser.
    var element = event.target;
    if (element.matches("form") && element.method === "post") return event.preventDefault();
    var to = element.matches("a") ? element.href : element.matches("form") ? element.action : "";
    if (to && new URL(to, window.location.href).pathname !== window.location.pathname) event.preventDefault();
  }

  // A form that does something is sent once; the server sees to it too.
  function sent(event) {
    var form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  }

  function shownAgain() {
    document.querySelectorAll("form[data-sent]").forEach(function (form) { delete form.dataset.sent; });
  }

  // Paper is light and narrow: the charts are drawn for it, and drawn again for the screen.
  var themeOnScreen;

  function toPaper() {
    themeOnScreen = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    document.documentElement.classList.add("printing");
    drawAll();
  }

  function toScreen() {
    if (themeOnScreen) document.documentElement.dataset.theme = themeOnScreen;
    else delete document.documentElement.dataset.theme;
    document.documentElement.classList.remove("printing");
    drawAll();
  }

  window.addEventListener("beforeprint", toPaper);
  window.addEventListener("afterprint", toScreen);
  window.addEventListener("pageshow", shownAgain);
  document.addEventListener("submit", sent);
  document.addEventListener("htmx:before:init", chosen);
  document.addEventListener("htmx:config:request", plain);
  document.addEventListener("htmx:before:request", begin);
  document.addEventListener("htmx:after:request", received);
  document.addEventListener("htmx:finally:request", end);
  document.addEventListener("htmx:after:swap", replaced);
  document.addEventListener("htmx:error", lost);
  document.addEventListener("change", function (event) {
    if (event.target.matches("select[data-theme-chooser]")) theme(event.target.value);
  });
  document.addEventListener("click", function (event) {
    if (event.target.closest("[data-print]")) window.print();
  });
  window.addEventListener("resize", function () { drawn.forEach(function (one) { one.chart.resize(); }); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("DOMContentLoaded", start);
})();
