/* What the pages do beyond HTML: draw the charts that are in them as data, and switch the theme.

   Every chart stands beside a table with the same figures, and every way on is a link: without this
   script nothing is missing but the drawing. Amounts are drawn from numbers and told as the texts
   that the server wrote. */
"use strict";
(function () {
  var PALETTE = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6", "--series-7", "--series-8"];
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

  function bars(plot, data) {
    var quiet = color("--quiet");
    var line = color("--line");
    var chart = echarts.init(plot, null, { renderer: "canvas" });
    chart.setOption({
      animation: false,
      aria: { enabled: true, decal: { show: data.series.length > 1 } },
      color: PALETTE.map(color),
      textStyle: { fontFamily: "inherit", color: color("--text") },
      grid: { left: 8, right: 8, top: data.series.length > 1 ? 52 : 28, bottom: 8, containLabel: true },
      legend: data.series.length > 1
        ? { type: "scroll", top: 0, left: 0, textStyle: { color: color("--text") }, pageTextStyle: { color: quiet } }
        : { show: false },
      tooltip: {
        trigger: "axis",
        renderMode: "richText",
        axisPointer: { type: "shadow" },
        formatter: function (points) {
          var lines = [points[0].axisValueLabel];
          points.forEach(function (point) {
            if (data.series[point.seriesIndex].values[point.dataIndex]) {
              lines.push(point.seriesName + ": " + told(data, point.seriesIndex, point.dataIndex));
            }
          });
          return lines.join("\n");
        }
      },
      xAxis: {
        type: "category",
        data: data.labels,
        axisLabel: { color: quiet, hideOverlap: true },
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
      series: data.series.map(function (one) {
        return { name: one.name, type: "bar", stack: data.stacked ? "all" : undefined, data: one.values, barMaxWidth: 40 };
      })
    });
    return { resize: function () { chart.resize(); }, end: function () { chart.dispose(); } };
  }

  function lines(plot, data) {
    var quiet = color("--quiet");
    var grid = { stroke: color("--line"), width: 1 };
    var series = [{ label: data.label }];
    data.series.forEach(function (one, index) {
      series.push({
        label: one.name,
        stroke: color(PALETTE[index % PALETTE.length]),
        width: one.dashed ? 1.5 : 2.5,
        dash: one.dashed ? [6, 5] : undefined,
        spanGaps: false,
        points: { show: false },
        value: function (_plot, _value, _series, place) {
          return place === null || one.values[place] === null ? "–" : told(data, index, place);
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
          values: function (_plot, splits) {
            return splits.map(function (at) { return Number.isInteger(at) && data.labels[at] !== undefined ? data.labels[at] : ""; });
          }
        },
        { stroke: quiet, grid: grid, ticks: { show: false }, size: 56, values: function (_plot, splits) { return splits.map(compact); } }
      ]
    }, [data.labels.map(function (_label, place) { return place; })].concat(data.series.map(function (one) { return one.values; })), plot);
    return { resize: function () { chart.setSize(size()); }, end: function () { chart.destroy(); } };
  }

  function draw(figure) {
    var data = read(figure);
    var plot = figure.querySelector(".plot");
    if (!data || !plot || !data.labels.length) return;
    plot.hidden = false;
    try {
      drawn.push({ figure: figure, chart: data.kind === "lines" ? lines(plot, data) : bars(plot, data) });
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

  function start() {
    var chooser = document.querySelector("select[data-theme-chooser]");
    if (chooser) {
      chooser.value = document.documentElement.dataset.theme || "system";
      chooser.addEventListener("change", function () { theme(chooser.value); });
    }
    document.querySelectorAll("[data-print]").forEach(function (button) {
      button.addEventListener("click", function () { window.print(); });
    });
    drawAll();
  }

  window.addEventListener("resize", function () { drawn.forEach(function (one) { one.chart.resize(); }); });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  document.addEventListener("DOMContentLoaded", start);
})();
